"""Attention by its definition: dense masks and plain matrix products in fp64.

It is slow and shares no code with the engine. The self-test of kernels, tests and benchmarks compare with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.tree import BoolArray


def oracle_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    depths: Sequence[int],
    visible: BoolArray | None,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return the attention of one sequence's queries in fp64, ``[n, n_heads, head_dim]``.

    Args:
        query: ``[n, n_heads, head_dim]``.
        keys: of the committed tokens, then of the queries, ``[n_cached + n, n_kv_heads, head_dim]``.
        values: like ``keys``.
        depths: position of each query relative to the first one, ``[n]``.
        visible: which query sees which, ``[n, n]``; None: each sees itself and those before it. All see the committed
            tokens.
        scale: factor of scores, before the cap.
        window: a query sees this many positions, the last of which is its own; None: all.
        softcap: scores are ``softcap * tanh(score / softcap)``; None: scores are not capped.
    """
    n, n_cached, groups = len(query), len(keys) - len(query), query.shape[1] // keys.shape[1]
    own = torch.ones(n, n, dtype=torch.bool).tril() if visible is None else torch.from_numpy(visible)
    is_seen = torch.cat((torch.ones(n, n_cached, dtype=torch.bool), own), dim=1)
    if window is not None:
        positions = torch.tensor([*range(n_cached), *(n_cached + depth for depth in depths)])
        is_seen &= positions[n_cached:, None] - positions < window
    key, value = (part.double().repeat_interleave(groups, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.softmax(scores.masked_fill(~is_seen.to(query.device), float("-inf")), dim=2)
    return torch.einsum("hqk,khd->qhd", weights, value)
