"""Shared parts of the kernels that draw: scores of ids, their order as integers, the noise of ``sampling.noise``.

A program handles one chunk of ``CHUNK`` ids of a row. The vocabulary alone decides the number of chunks, so a row's
sums are added up in one order whatever other rows are there; maxima have no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

CHUNK = 2048  # ids of a program
BLOCK = 1024  # ids that it holds at a time
NONE = tl.constexpr(-0x7FFFFFFFFFFFFFFF)  # less than every ``packed`` pair


@dataclass(frozen=True, slots=True)
class Scored:
    """Rows to draw from.

    Args:
        logits: ``[rows, vocab]``, any float dtype, rows contiguous.
        temperatures: fp32 ``[rows]``, 0 for greedy rows; rows below 0 are neither read nor drawn from.
        mask: bits of allowed ids, int32 ``[rows, ceil(vocab / 32)]``; None: all are.
        chunk: ids of a program.
    """

    logits: Tensor
    temperatures: Tensor
    mask: Tensor | None
    chunk: int = CHUNK

    @property
    def has_mask(self) -> bool:
        """Whether a mask forbids some ids."""
        return self.mask is not None

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and chunks."""
        return self.logits.shape[0], triton.cdiv(self.logits.shape[1], self.chunk)

    @property
    def block_c(self) -> int:
        """The power of two that holds a row's chunks."""
        return int(triton.next_power_of_2(self.grid[1]))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first arguments of a kernel."""
        return self.logits, self.logits if self.mask is None else self.mask, self.temperatures

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Arguments of a kernel: vocabulary, rows, chunks, strides of logits and mask."""
        logits, mask, _ = self.tensors
        return logits.shape[1], *self.grid, logits.stride(0), mask.stride(0)

    def launch(
        self, kernel: Any, arguments: Sequence[Any], flags: Sequence[bool], num_warps: int, block: int = BLOCK
    ) -> None:
        """Launch a program for every chunk; ``arguments`` follow ``tensors``, ``flags`` follow ``has_mask``."""
        kernel[self.grid](
            *self.tensors,
            *arguments,
            *self.sizes,
            self.has_mask,
            *flags,
            self.chunk,
            block,
            self.block_c,
            num_warps=num_warps,
            enable_fp_fusion=False,
        )


@triton.jit
def ordered(x):  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    """fp32 -> int32 in the same order; -0 is 0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(key):  # type: ignore[no-untyped-def]
    """The fp32 number of an ``ordered`` int32."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_of(x):  # type: ignore[no-untyped-def]
    """fp32 -> int64 from 0 to 2**32 - 1 in the same order."""
    return ordered(x).to(tl.int64) + 0x80000000


@triton.jit
def number_of(key):  # type: ignore[no-untyped-def]
    """The fp32 number of a ``key_of``."""
    return unordered((key - 0x80000000).to(tl.int32))


@triton.jit
def finite(x):  # type: ignore[no-untyped-def]
    """0 for -inf, the best score of a row or a chunk without allowed ids."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit
def packed(x, ids, inside):  # type: ignore[no-untyped-def]
    """One int64 of a number and its id: the largest is the largest number, of equal ones that of the lowest id.

    Pairs that are not ``inside`` are less than all others.
    """
    both = (ordered(x).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    return tl.where(inside, both, NONE)


@triton.jit
def packed_value(both):  # type: ignore[no-untyped-def]
    """The number of a ``packed`` pair, fp32."""
    return unordered((both >> 32).to(tl.int32))


@triton.jit
def packed_id(both):  # type: ignore[no-untyped-def]
    """The id of a ``packed`` pair, int32."""
    return 0x7FFFFFFF - (both & 0x7FFFFFFF).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def best_of(chunks, row, n_chunks, block_c: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest of a row's ``packed`` pairs, one of every chunk, in ``chunks`` ``[rows, n_chunks]``."""
    chunk = tl.arange(0, block_c)
    found = tl.load(chunks + row * n_chunks + chunk, mask=chunk < n_chunks, other=NONE)
    return tl.max(found, axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def scores_of(  # type: ignore[no-untyped-def]
    logits, mask, temperature, row, ids, vocab, stride, mask_stride, has_mask: tl.constexpr
):
    """Scores of a row's ids, fp32: masked, divided by the temperature unless that is 0."""
    inside = ids < vocab
    scores = tl.load(logits + row * stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    if has_mask:
        words = tl.load(mask + row * mask_stride + ids // 32, mask=inside, other=0)
        scores = tl.where(((words >> (ids % 32)) & 1) == 1, scores, float("-inf"))
    return tl.div_rn(scores, tl.where(temperature == 0.0, 1.0, temperature) + tl.zeros_like(scores))


@triton.jit
def gumbel(ids, low, high):  # type: ignore[no-untyped-def]
    """``sampling.noise.gumbel`` of some ids, fp32; ``low`` and ``high`` are the halves of its key, uint32."""
    x = ids.to(tl.uint32) * 0x9E3779B9 + low
    x = ((x ^ (x >> 17)) * 0xED5AD4BB) ^ high
    x = (x ^ (x >> 11)) * 0xAC4C1B51
    x = (x ^ (x >> 15)) * 0x31848BAB
    x = x ^ (x >> 14)
    u = (x.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2**-32
    return (-tl.log(-tl.log(u))).to(tl.float32)
