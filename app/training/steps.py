"""Rows that are fed their own outputs, as in drafting (training-time test of EAGLE-3, arXiv 2503.01840)."""

from __future__ import annotations

import torch
from torch import Tensor

from app.training.masks import KeysValues, additive, attention, causal
from app.training.texts import Roots, take
from engine.drafter.networks.pairs import PairNetwork


def step_outputs(network: PairNetwork, tokens: Tensor, states: Tensor, roots: Roots, n_steps: int) -> list[Tensor]:
    """Outputs ``[b, m, hidden]`` of every step.

    The first step runs all rows on the target's states; of the further ones only the roots' rows are run: such a row
    sees the first step's up to its own, and its own of earlier steps. Its token is the text's.

    Args:
        tokens: int64 ``[b, n]``.
        states: ``[b, n, width]``, fused.
        roots: where steps beyond the first are run.
        n_steps: at least 1.
    """
    n, (n_texts, n_roots), device = tokens.shape[1] - 1, roots.at.shape, tokens.device
    real, ends = torch.arange(n, device=device).expand(n_texts, -1), roots.at - 1
    kept: list[list[KeysValues]] = [[] for _ in range(network.shape.n_layers)]
    key_positions, sees = real, causal(n, n_texts, device)
    embedded = network.embed_tokens(tokens[:, 1:])
    mask = additive(sees, real, key_positions, network.shape.window, embedded.dtype)
    outputs = take(network(embedded, states[:, :n], real, attention(mask, kept)), ends)
    found, own = [outputs], torch.eye(n_roots, dtype=torch.bool, device=device).expand(n_texts, -1, -1)
    sees = real[:, None] <= ends[:, :, None]
    for step in range(1, n_steps):
        positions = ends + step
        sees, key_positions = torch.cat((sees, own), dim=2), torch.cat((key_positions, positions), dim=1)
        embedded = network.embed_tokens(take(tokens, roots.at + step))
        mask = additive(sees, positions, key_positions, network.shape.window, embedded.dtype)
        outputs = network(embedded, network.next_states(outputs), positions, attention(mask, kept))
        found.append(outputs)
    return found
