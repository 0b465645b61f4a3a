"""Parallel groups: a real row and the masks behind it, which are trained as they draft (arXiv 2410.05589, section 4.1).

Every group has masks of its own, at the positions that follow its real row; they see the real rows up to it and each
other, and no group sees another's. P-EAGLE's groups (arXiv 2602.01469) are alike; most of them stop early.
"""

from __future__ import annotations

import torch
from torch import Tensor

from app.training.masks import additive, attention, causal
from app.training.texts import Roots, take
from engine.drafter.networks.pairs import PairNetwork


def group_outputs(
    network: PairNetwork, tokens: Tensor, states: Tensor | None, roots: Roots, counts: list[int]
) -> list[Tensor]:
    """Outputs ``[b, counts[d], hidden]`` of the real rows, then of masks 1, 2, ..

    Args:
        tokens: int64 ``[b, n]``.
        states: ``[b, n, width]``, fused; None where the drafter reads none.
        counts: of every depth how many groups reach it, the first ones; ``counts[0]`` is all of them.
    """
    shift = 0 if states is None else 1  # a pair's row stands where its state does
    n, device = tokens.shape[1] - shift, tokens.device
    ends = roots.at - shift
    group = torch.cat([torch.arange(count, device=device) for count in (0, *counts[1:])])
    reached = torch.tensor(counts[1:], dtype=torch.int64, device=device)
    depth = torch.arange(1, len(counts), device=device).repeat_interleave(reached)
    real = torch.arange(n, device=device).expand(len(tokens), -1)
    positions = torch.cat((real, ends[:, group] + depth), dim=1)
    mask_embedded, mask_states = network.mask_rows(len(counts) - 1)
    embedded = _beside(network.embed_tokens(tokens[:, shift:]), mask_embedded[depth - 1])
    known = None
    if states is not None:
        assert mask_states is not None, "masks of a drafter that reads states have states"
        known = _beside(states[:, :n], mask_states[depth - 1])
    sees = group_mask(n, ends, group, depth)
    mask = additive(sees, positions, positions, network.shape.window, embedded.dtype)
    attend = attention(mask, [[] for _ in range(network.shape.n_layers)])
    outputs = network(embedded, known, positions, attend)
    return [take(outputs[:, :n], ends), *outputs[:, n:].split(counts[1:], dim=1)]


def group_mask(n: int, ends: Tensor, group: Tensor, depth: Tensor) -> Tensor:
    """Bool ``[b, rows, rows]``: who sees whom among ``n`` real rows, and masks behind them.

    Args:
        ends: int64 ``[b, m]``, the real row of every group.
        group: int64 ``[masks]``, each one's.
        depth: int64 ``[masks]``, each one's, from 1.
    """
    n_texts, rows = len(ends), n + len(group)
    sees = torch.zeros(n_texts, rows, rows, dtype=torch.bool, device=ends.device)
    sees[:, :n, :n] = causal(n, n_texts, ends.device)
    sees[:, n:, :n] = torch.arange(n, device=ends.device) <= ends[:, group, None]
    sees[:, n:, n:] = (group == group[:, None]) & (depth <= depth[:, None])
    return sees


def _beside(real: Tensor, masks: Tensor) -> Tensor:
    return torch.cat((real, masks.to(real.dtype).expand(len(real), -1, -1)), dim=1)
