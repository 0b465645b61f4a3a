"""Normalises and rotates queries and keys, and writes keys and values to the arena, in one launch.

One program takes a key head of a row with the query heads that share it. Angles are fp32, as in Hugging Face's modules.
Their cosines and sines are computed in fp64, to less than an fp32 step: a position may be a million, and a library
would need tables for such angles.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import await_previous, launch_options
from engine.cuda.operands import Heads, Norm, RotaryFrequencies


@triton.jit
def _cos_sin(angles):  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    """Cosines and sines of fp32 ``angles``, from 0 to 2**26, as fp32: Taylor's series between -pi / 4 and pi / 4."""
    x = angles.to(tl.float64)
    quarter = tl.floor(x * 0.6366197723675814 + 0.5)
    x = (x - quarter * 1.5707963267948966) - quarter * 6.123233995736766e-17
    s = x * x
    cos = 2.08767569878681e-9 - s * 1.1470745597729725e-11
    cos = -2.755731922398589e-7 + s * cos
    cos = 2.48015873015873e-5 + s * cos
    cos = -1.3888888888888889e-3 + s * cos
    cos = 4.1666666666666664e-2 + s * cos
    cos = 1.0 + s * (-0.5 + s * cos)
    sin = 1.6059043836821613e-10 - s * 7.647163731819816e-13
    sin = -2.505210838544172e-8 + s * sin
    sin = 2.7557319223985893e-6 + s * sin
    sin = -1.984126984126984e-4 + s * sin
    sin = 8.333333333333333e-3 + s * sin
    sin = x + x * s * (-1.6666666666666666e-1 + s * sin)
    turn = quarter.to(tl.int32) & 3
    is_odd = (turn & 1) == 1
    to_cos = tl.where(is_odd, sin, cos)
    to_sin = tl.where(is_odd, cos, sin)
    to_cos = tl.where((turn == 1) | (turn == 2), -to_cos, to_cos)
    to_sin = tl.where(turn >= 2, -to_sin, to_sin)
    return to_cos.to(tl.float32), to_sin.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _normed(  # type: ignore[no-untyped-def]
    first, second, weight, at, half, inside, eps, offset, is_gemma: tl.constexpr
):
    """Halves of heads ``[heads, half]``, normalised as ``norm.rms_norm`` does, in their dtype."""
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    total = tl.sum(wide_first * wide_first + wide_second * wide_second, axis=1)
    scale = tl.rsqrt(total / (2 * half) + eps)[:, None]
    factor_first = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    factor_second = tl.load(weight + half + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    wide_first, wide_second = wide_first * scale, wide_second * scale
    if not is_gemma:
        wide_first, wide_second = wide_first.to(first.dtype).to(tl.float32), wide_second.to(first.dtype).to(tl.float32)
    new_first, new_second = wide_first * (offset + factor_first), wide_second * (offset + factor_second)
    return new_first.to(first.dtype), new_second.to(first.dtype)


@triton.jit
def _rotated(first, second, cos, sin):  # type: ignore[no-untyped-def]
    """Halves of heads ``[heads, half]``, turned; both products and their sum are rounded to the heads' dtype."""
    dtype: tl.constexpr = first.dtype
    one, two = first.to(tl.float32), second.to(tl.float32)
    new_first = (one * cos).to(dtype).to(tl.float32) - (two * sin).to(dtype).to(tl.float32)
    new_second = (two * cos).to(dtype).to(tl.float32) + (one * sin).to(dtype).to(tl.float32)
    return new_first.to(dtype), new_second.to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _halves(qkv, at, within, half: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of heads, ``[heads, half]``, that begin at ``at``."""
    first = tl.load(qkv + at, mask=within, other=0.0)
    return first, tl.load(qkv + at + half, mask=within, other=0.0)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _rope_write(  # type: ignore[no-untyped-def]
    qkv,
    positions,
    slots,
    inv_freq,
    q_norm,
    k_norm,
    q_out,
    k_arena,
    v_arena,
    n_rows,
    qkv_stride,
    q_stride,
    k_stride,
    v_stride,
    eps,
    offset,
    attention_scaling,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
    has_norm: tl.constexpr,
    is_gemma: tl.constexpr,
    block_g: tl.constexpr,
    block_h: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    groups: tl.constexpr = heads // kv_heads
    at = tl.arange(0, block_h)
    inside = at < half
    position = tl.load(positions + row).to(tl.float32)
    cos, sin = _cos_sin(position * tl.load(inv_freq + at, mask=inside, other=0.0))
    dtype: tl.constexpr = q_out.dtype.element_ty
    cos = (cos * attention_scaling).to(dtype).to(tl.float32)[None, :]
    sin = (sin * attention_scaling).to(dtype).to(tl.float32)[None, :]

    group = tl.arange(0, block_g)
    within = (group < groups)[:, None] & inside[None, :]
    place = (kv_head * groups + group)[:, None] * (2 * half) + at[None, :]
    first, second = _halves(qkv, row * qkv_stride + place, within, half)
    if has_norm:
        first, second = _normed(first, second, q_norm, at, half, inside, eps, offset, is_gemma)
    first, second = _rotated(first, second, cos, sin)
    tl.store(q_out + row * q_stride + place, first, mask=within)
    tl.store(q_out + row * q_stride + place + half, second, mask=within)

    slot = tl.load(slots + row).to(tl.int64)
    place = kv_head * (2 * half) + at[None, :]
    within, of_key = inside[None, :], heads * (2 * half) + place
    first, second = _halves(qkv, row * qkv_stride + of_key, within, half)
    if has_norm:
        first, second = _normed(first, second, k_norm, at, half, inside, eps, offset, is_gemma)
    first, second = _rotated(first, second, cos, sin)
    tl.store(k_arena + slot * k_stride + place, first, mask=within)
    tl.store(k_arena + slot * k_stride + place + half, second, mask=within)

    of_value = of_key + kv_heads * (2 * half)
    first, second = _halves(qkv, row * qkv_stride + of_value, within, half)
    tl.store(v_arena + slot * v_stride + place, first, mask=within)
    tl.store(v_arena + slot * v_stride + place + half, second, mask=within)


def rotate_and_write(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    rotary: RotaryFrequencies,
    heads: Heads,
    norms: tuple[Norm, Norm] | None,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    overlaps: bool = False,
) -> None:
    """Rotate queries and keys by their positions, where the halves of a head are a pair, and write keys and values.

    Norms round as ``norm.rms_norm`` does. Cosines, sines, their products and the sums of these are rounded to the dtype
    of ``query`` one by one, as in Hugging Face's modules. Of several rows with one slot any may be the one that stays.

    Args:
        qkv: queries, keys and values, ``[rows, (n_heads + 2 * n_kv_heads) * head_dim]``, rows contiguous.
        positions: int32 or int64 ``[rows]``, at least 0.
        slots: arena row of every row, int32 or int64 ``[rows]``.
        rotary: of the layer.
        heads: of the layer; ``head_dim`` is even.
        norms: of queries and of keys, which share ``eps`` and ``offset``; None: neither is normalised.
        query: written, ``[rows, n_heads * head_dim]``, of the dtype of ``qkv`` and the arena.
        keys: of the arena, ``[n_slots, n_kv_heads, head_dim]``, a slot's heads contiguous.
        values: like ``keys``.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    n_rows, half = len(qkv), heads.head_dim // 2
    if not n_rows:
        return
    block_g, block_h = triton.next_power_of_2(heads.groups), triton.next_power_of_2(half)
    unused = Norm(rotary.frequencies, 0.0)
    q_norm, k_norm = norms or (unused, unused)
    tensors = qkv, positions, slots, rotary.frequencies, q_norm.weight, k_norm.weight, query, keys, values
    _rope_write[(n_rows, heads.n_kv_heads)](
        *tensors,
        n_rows,
        *(one.stride(0) for one in (qkv, query, keys, values)),
        *(q_norm.eps, q_norm.offset, rotary.scaling),
        *(heads.n_heads, heads.n_kv_heads, half),
        norms is not None,
        q_norm.offset != 0.0,
        *(block_g, block_h),
        overlaps,
        **launch_options(min(4, max(1, block_g * block_h // 128)), overlaps),
    )
