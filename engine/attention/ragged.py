"""Attention of several sequences in one call: each has its own queries and its own run of key rows in one tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.kernels import math_attention
from engine.upload import Upload, Uploaded

try:
    from flash_attn import flash_attn_func
except ImportError:  # an optional extra: CUDA only, built from source
    flash_attn_func = None

_FLASH = torch.ops.aten._flash_attention_forward
_HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True, frozen=True)
class Lengths:
    """Queries and keys of some sequences: the host's copy, and the device's that one launch for all of them reads.

    Queries of the sequences lie one behind the other; the keys of each are a run of rows anywhere in one tensor.
    """

    n_queries: list[int]
    starts: list[int]  # first key row
    n_keys: list[int]
    query_ends: Uploaded  # int32 [n + 1], from 0
    key_starts: Uploaded  # int32 [n + 1], the last is not read
    keys_used: Uploaded  # int32 [n]

    @classmethod
    def of(cls, n_queries: list[int], starts: list[int], n_keys: list[int], upload: Upload) -> Lengths:
        """Lengths ``[n]`` of ``n`` sequences, whose device copies come with ``upload``."""
        ends = upload.add(np.cumsum([0, *n_queries]), np.int32)
        return cls(n_queries, starts, n_keys, ends, upload.add([*starts, 0], np.int32), upload.add(n_keys, np.int32))


def ragged(
    q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, scale: float, causal: bool, window: int | None
) -> tuple[Tensor, Tensor]:
    """Attention of several sequences, each over a run of key rows.

    Args:
        q: ``[n_queries, n_heads, head_dim]`` of all sequences.
        k: ``[n_rows, n_kv_heads, head_dim]``.
        v: like ``k``.
        lengths: who reads what; a sequence may have no keys.
        scale: softmax scale.
        causal: whether a sequence's last query sees all its keys and every other one key less than the next.
        window: keys that a query looks back over, itself included (causal only); ``None`` for all.

    Returns:
        Output like ``q``, 0 where there are no keys, and log-sum-exp fp32 ``[n_heads, n_queries]``, there -inf.
    """
    if not any(lengths.n_keys):
        return torch.zeros_like(q), q.new_full((q.shape[1], q.shape[0]), float("-inf"), dtype=torch.float32)
    if q.device.type != "cuda" or q.dtype not in _HALF or q.shape[-1] > 256 or q.shape[-1] % 8:
        return _ragged_math(q, k, v, lengths, scale, causal, window)
    back = None if window is None else window - 1
    if len(lengths.n_keys) == 1:
        first, n_keys = lengths.starts[0], lengths.n_keys[0]
        own = (q.unsqueeze(0), k[first : first + n_keys].unsqueeze(0), v[first : first + n_keys].unsqueeze(0))
        out, lse = _flash(*own, scale, causal, back)
        return out[0], lse[0, :, : q.shape[0]]
    out, lse, *_ = _FLASH(
        q,
        k,
        v,
        lengths.query_ends.tensor,
        lengths.key_starts.tensor,
        max(lengths.n_queries),
        max(lengths.n_keys),
        0.0,
        causal,
        False,
        scale=scale,
        window_size_left=back,
        window_size_right=None if back is None else 0,
        seqused_k=lengths.keys_used.tensor,
    )
    if not all(lengths.n_keys):
        lse = lse.masked_fill(lse == float("inf"), float("-inf"))  # what the kernel writes where there are no keys
    return out, lse


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, back: int | None) -> tuple[Tensor, Tensor]:
    """One sequence ``[1, n, heads, head_dim]``: flash-attn when it is installed, torch's own flash kernel otherwise.

    Unlike the call for several, this one splits long keys over the device. Both align a causal block at its end.
    """
    if flash_attn_func is not None:
        reach = (-1, -1) if back is None else (back, 0)
        out, lse, _ = flash_attn_func(
            q, k, v, softmax_scale=scale, causal=causal, window_size=reach, return_attn_probs=True
        )
        return out, lse
    right = None if back is None else 0
    out, lse, *_ = _FLASH(
        q,
        k,
        v,
        None,
        None,
        q.shape[1],
        k.shape[1],
        0.0,
        causal,
        False,
        scale=scale,
        window_size_left=back,
        window_size_right=right,
    )
    return out, lse


def _ragged_math(
    q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, scale: float, causal: bool, window: int | None
) -> tuple[Tensor, Tensor]:
    """``ragged`` sequence by sequence with plain products: the oracle, and the way of dtypes that flash lacks."""
    n_heads, n_kv_heads = q.shape[1], k.shape[1]
    outs: list[Tensor] = []
    lses: list[Tensor] = []
    parts = zip(torch.split(q, lengths.n_queries), lengths.starts, lengths.n_keys, strict=True)
    for own, first, n_keys in parts:
        n = len(own)
        if not n_keys:
            outs.append(torch.zeros_like(own))
            lses.append(own.new_full((n_heads, n), float("-inf"), dtype=torch.float32))
            continue
        mask = None
        if causal and (n > 1 or window is not None):
            places = torch.arange(n_keys, device=q.device)
            back = places[n_keys - n :, None] - places
            seen = back >= 0 if window is None else (back >= 0) & (back < window)
            mask = seen.log().repeat(n_heads // n_kv_heads, 1)
        folded = own.transpose(0, 1).reshape(1, n_kv_heads, -1, own.shape[-1])
        keys, values = (x[first : first + n_keys].transpose(0, 1).unsqueeze(0) for x in (k, v))
        out, lse = math_attention(folded, keys, values, mask, scale)
        outs.append(out.reshape(n_heads, n, -1).transpose(0, 1))
        lses.append(lse.reshape(n_heads, n))
    return torch.cat(outs), torch.cat(lses, dim=1)
