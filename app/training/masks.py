"""Attention of training: rows of whole texts at once, told by dense masks who sees whom."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.drafter.networks.layer import Attend

KeysValues = tuple[Tensor, Tensor]  # each [b, n, n_kv_heads, head_dim]


def additive(sees: Tensor, positions: Tensor, key_positions: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where a row sees a key, else minus infinity, ``[b, 1, rows, keys]``.

    Args:
        sees: bool ``[b, rows, keys]``.
        positions: int64 ``[b, rows]``.
        key_positions: int64 ``[b, keys]``.
        window: positions that a row looks back over, its own among them; None: all.
    """
    if window is not None:
        sees = sees & (positions[:, :, None] - key_positions[:, None] < window)
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, -torch.inf)[:, None]


def attention(mask: Tensor, kept: list[list[KeysValues]]) -> Attend:
    """Attention over keys and values that are kept, by layer, and over those of the rows, which are kept from then on.

    Args:
        mask: from ``additive``, keys in the order in which they are kept.
        kept: of every layer, the earlier ones.
    """

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kept[layer].append((key, value))
        keys, values = (torch.cat(parts, dim=1) for parts in zip(*kept[layer], strict=True))
        q, k, v = (x.transpose(1, 2) for x in (query, keys, values))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)

    return attend


def causal(n: int, n_texts: int, device: torch.device) -> Tensor:
    """Bool ``[n_texts, n, n]``: a row sees itself and those before it."""
    return torch.ones(n, n, dtype=torch.bool, device=device).tril().expand(n_texts, n, n)
