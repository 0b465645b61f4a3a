"""Weights with a scale for every group of inputs: how they lie in memory, and what they stand for.

A matrix has signed integers of 4 or 8 bits or fp8 numbers. A weight is ``(number - zero) * scale``, where zero and
scale are those of its output and its group. Scales of blocks of outputs are repeated for every output, so matrices can
be joined and cut at any output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

CENTRE = 8  # added to a number of 4 bits, so that it lies in 0 to 15


@dataclass(frozen=True, slots=True)
class ScaleGroups:
    """Scales and zeros of a matrix."""

    scales: Tensor  # [n_out, n_groups], any float dtype
    zeros: Tensor | None  # int16 [n_out, n_groups]; None: all are 0
    size: int  # inputs of a group; the last one may have fewer
    n_in: int  # inputs of the matrix
    skipped: int = 0  # inputs of the first group that the matrix lacks, because another rank has them

    def rows(self, first: int, last: int) -> ScaleGroups:
        """Return the groups of outputs ``first`` to ``last - 1``, as views."""
        zeros = None if self.zeros is None else self.zeros[first:last]
        return replace(self, scales=self.scales[first:last], zeros=zeros)

    def copy(self) -> ScaleGroups:
        """Return the same groups with memory of their own."""
        return replace(self, scales=self.scales.clone(), zeros=None if self.zeros is None else self.zeros.clone())

    def columns(self, first: int, last: int) -> tuple[ScaleGroups, slice]:
        """Return the groups of inputs ``first`` to ``last - 1``, and which groups of the matrix they are."""
        groups = slice(first // self.size, -(-last // self.size))
        zeros = None if self.zeros is None else self.zeros[:, groups].contiguous()
        scales = self.scales[:, groups].contiguous()
        return ScaleGroups(scales, zeros, self.size, last - first, first % self.size), groups


def join_groups(parts: Sequence[ScaleGroups]) -> ScaleGroups:
    """Return the groups of matrices with the same inputs, one after the other."""
    zeros = None
    if any(one.zeros is not None for one in parts):
        zeros = torch.cat(
            [torch.zeros_like(one.scales, dtype=torch.int16) if one.zeros is None else one.zeros for one in parts]
        )
    return replace(parts[0], scales=torch.cat([one.scales for one in parts]), zeros=zeros)


def pack(numbers: Tensor, size: int) -> Tensor:
    """Pack numbers of 4 bits, int8 ``[n_out, n_groups * size]`` from -8 to 7, as uint8 with half as many columns.

    The low half of byte ``i`` of a group is its number ``i``, the high half is number ``i + size / 2``: so a kernel
    multiplies by either half as a whole.
    """
    halves = (numbers + CENTRE).to(torch.uint8).view(len(numbers), -1, 2, size // 2)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)


def unpack(packed: Tensor, size: int) -> Tensor:
    """Return the numbers that ``pack`` packed."""
    groups = packed.view(len(packed), -1, 1, size // 2)
    return (torch.cat((groups & 15, groups >> 4), dim=2).to(torch.int8) - CENTRE).flatten(1)


def widen(numbers: Tensor, groups: ScaleGroups, dtype: torch.dtype) -> Tensor:
    """Return the weights ``[n_out, n_in]`` in ``dtype``, computed in fp32.

    Args:
        numbers: fp8 or int8 ``[n_out, n_groups * size]``, or packed as uint8.
        groups: of the matrix.
        dtype: of the result.
    """
    plain = unpack(numbers, groups.size) if numbers.dtype == torch.uint8 else numbers
    values = plain.float().view(len(plain), -1, groups.size)
    if groups.zeros is not None:
        values = values - groups.zeros.float()[:, :, None]
    weights = (values * groups.scales.float()[:, :, None]).flatten(1)
    return weights[:, groups.skipped : groups.skipped + groups.n_in].to(dtype)


class GroupedLinear(nn.Module):
    """``nn.Linear`` with scales of groups. Its weights are converted at every call, which is slow.

    The executor (``engine.cuda``) multiplies by the numbers themselves.

    Args:
        weight: as ``numbers`` of ``widen``.
        groups: of the matrix.
        bias: ``[n_out]``, or None.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, groups: ScaleGroups, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.groups, self.bias, self.is_wide = groups, bias, False

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``[.., n_out]`` in the dtype of ``rows`` ``[.., n_in]``."""
        weights = self.weight if self.is_wide else widen(self.weight, self.groups, rows.dtype)
        return functional.linear(rows, weights, self.bias)

    def widen(self, dtype: torch.dtype) -> None:
        """Convert the weights to ``dtype`` for good."""
        if not self.is_wide:
            self.weight, self.is_wide = widen(self.weight, self.groups, dtype), True
