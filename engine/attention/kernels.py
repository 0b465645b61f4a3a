"""Attention of some queries over one block of keys, with its log-sum-exp, so that blocks can be merged.

Functions take queries ``[1, n_kv_heads, n_q, head_dim]`` (grouped heads folded into the query axis) and keys
and values ``[1, n_kv_heads, n_k, head_dim]`` and returns ``(out like q, lse [1, n_kv_heads, n_q] fp32)``. A mask is
additive, ``[n_q, n_k]``, and leaves at least one key to every query (a fully masked row has no log-sum-exp).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_CPU_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def block_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """The CPU's fused kernel; the mask has the queries' dtype."""
    out, lse = _CPU_FLASH(q, k, v, attn_mask=mask, scale=scale)
    return out, lse


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Torch's own kernel for any device; the mask has the queries' dtype. There is no log-sum-exp to merge by."""
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def math_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Plain matrix products in fp32, whatever the dtype of the tensors: the oracle.

    Scores that are rounded to bf16 before the softmax are wrong by 2^-9 of themselves, weights by a few per cent.
    """
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.matmul(weights, v.float()).to(q.dtype), lse


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:
    """Attention over the union of two disjoint key blocks, from each block's output and log-sum-exp."""
    weight = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    return torch.lerp(out_a.float(), out_b.float(), weight).to(out_a.dtype)
