"""Networks of drafters run as training does: a batch of whole texts, attention by dense masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.drafter.networks.layer import Attend


def dense_attend(sees: Tensor, context: list[tuple[Tensor, Tensor]] | None = None) -> Attend:
    """Attention of rows ``[b, n, ...]``.

    Args:
        sees: bool ``[n, keys]``, of every text alike.
        context: of every layer, keys and values ``[b, m, ...]`` that come before those of the rows.
    """

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if context is not None:
            key, value = (torch.cat(pair, dim=1) for pair in zip(context[layer], (key, value), strict=True))
        heads = [x.transpose(1, 2) for x in (query, key, value)]
        return F.scaled_dot_product_attention(*heads, attn_mask=sees, enable_gqa=True).transpose(1, 2)

    return attend


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()
