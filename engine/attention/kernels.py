"""Attention of some queries over one block of keys, with its log-sum-exp, so that blocks can be merged.

Every function takes queries ``[1, n_kv_heads, n_q, head_dim]`` (grouped heads folded into the query axis) and keys
and values ``[1, n_kv_heads, n_k, head_dim]`` and returns ``(out like q, lse [1, n_kv_heads, n_q] fp32)``. A mask is
additive, ``[n_q, n_k]``, and leaves at least one key to every query (a fully masked row has no log-sum-exp).
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from flash_attn import flash_attn_func
except ImportError:  # an optional extra: CUDA only, built from source
    flash_attn_func = None

_CPU_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CUDA_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_HALF = (torch.float16, torch.bfloat16)


def block_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """The fastest kernel for the device at hand."""
    if q.device.type == "cpu":
        out, lse = _CPU_FLASH(q, k, v, attn_mask=mask, scale=scale)
        return out, lse
    if mask is None and q.device.type == "cuda" and q.dtype in _HALF and q.shape[-1] <= 256:
        return _cuda_flash(q, k, v, scale)
    return math_attention(q, k, v, mask, scale)


def _cuda_flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Unmasked prefix on CUDA: flash-attn when it is installed, torch's own flash kernel otherwise."""
    if flash_attn_func is not None:
        out, lse, _ = flash_attn_func(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), softmax_scale=scale, return_attn_probs=True
        )
        return out.transpose(1, 2), lse
    out, lse, *_ = _CUDA_FLASH(q, k, v, scale=scale)
    return out, lse[..., : q.shape[2]]


def math_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Plain matrix products with an fp32 softmax: the oracle, and the path for small masked blocks on CUDA."""
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).to(q.dtype)
    return torch.matmul(weights, v), lse


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:
    """Attention over the union of two disjoint key blocks, from each block's output and log-sum-exp."""
    weight = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    return torch.lerp(out_a.float(), out_b.float(), weight).to(out_a.dtype)
