"""Reads the tensors of a stored matrix as its ``WeightLayout`` describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.errors import UnsupportedModelError
from engine.model.matrices.groups import GroupedLinear, ScaleGroups, pack, widen
from engine.model.matrices.layout import WeightLayout
from engine.model.matrices.linears import FP8_DTYPE, ScaledLinear

DEFAULT_GROUP = 128  # inputs of a group in memory if an output has one scale, but its numbers need groups
WORD = 32  # bits
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix as it is in memory: numbers with scales of groups or outputs."""

    numbers: Tensor  # [n_out, n_in], or as ``widen`` takes it
    scales: Tensor | ScaleGroups  # fp32 [n_out], or scales of groups

    def linear(self, bias: nn.Parameter | None) -> nn.Module:
        """Return the linear layer."""
        if isinstance(self.scales, ScaleGroups):
            return GroupedLinear(self.numbers, self.scales, bias)
        return ScaledLinear(self.numbers, self.scales, bias)


def stored_shapes(layout: WeightLayout, n_out: int, n_in: int) -> dict[str, tuple[Sequence[int], ...]]:
    """Return the shapes that each tensor of a matrix may have, by the last part of its name."""
    n_groups, per_word = -(-n_in // (layout.group or n_in)), WORD // layout.bits
    blocks = -(-n_out // layout.outputs)
    scales: tuple[Sequence[int], ...] = ((n_groups, blocks) if layout.is_transposed else (blocks, n_groups),)
    if layout.group is None and not layout.is_transposed:
        scales = ((n_out, 1), (n_out,), (1,), (1, 1), ())
    words, packed_out = -(-n_in // per_word), -(-n_out // per_word)
    weight: tuple[int, ...] = (n_out, n_in)
    if layout.weight != "weight":
        weight = (n_out, words)
        if layout.is_transposed:
            weight = (n_in, packed_out) if layout.packs_outputs else (words, n_out)
    zeros = ((n_groups, packed_out),) if layout.is_transposed else ((packed_out, n_groups), (n_out, n_groups), (n_out,))
    shapes = {layout.weight: (weight,), **dict.fromkeys(layout.scale, scales)}
    return shapes | {layout.zero: zeros, layout.order: ((n_in,),)}


def stored_dtypes(layout: WeightLayout, suffix: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes that a tensor of a matrix may have."""
    if suffix == layout.weight:
        plain = FP8_DTYPE if layout.is_float else torch.int8
        return (torch.int32 if layout.weight != "weight" else plain,)
    if suffix == layout.zero:
        return torch.int32, torch.int8
    return (torch.int32, torch.int64) if suffix == layout.order else (torch.float32, torch.bfloat16, torch.float16)


def decode(
    tensors: Mapping[str, Tensor], layout: WeightLayout, n_out: int, n_in: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return numbers int8 or fp8 ``[n_out, n_in]``, scales ``[n_out, n_groups]`` and zeros int16 like them, or None.

    Args:
        tensors: of the matrix, by the last part of their names, with shapes of ``stored_shapes``.
        layout: of the checkpoint.
        n_out: outputs.
        n_in: inputs.
    """
    numbers = tensors[layout.weight]
    if layout.weight != "weight":
        along = 1 if layout.packs_outputs == layout.is_transposed else 0
        numbers = _unpack_words(numbers, layout, along, n_out if layout.packs_outputs else n_in)
        numbers = numbers.T if layout.is_transposed else numbers
    scales = next(tensors[name] for name in layout.scale if name in tensors)
    scales = scales.T if layout.is_transposed else scales.reshape(-1, 1) if layout.group is None else scales
    scales = scales.repeat_interleave(layout.outputs, 0)[:n_out] if layout.outputs > 1 else scales.expand(n_out, -1)
    zeros = tensors.get(layout.zero)
    if zeros is not None:
        if zeros.dtype == torch.int32:
            zeros = _unpack_words(zeros, layout, 1 if layout.is_transposed else 0, n_out)
        zeros = (zeros.T if layout.is_transposed else zeros.reshape(n_out, -1)).to(torch.int16) + layout.zero_offset
        zeros = zeros if bool(zeros.any()) else None
    return numbers, scales, zeros


def _unpack_words(words: Tensor, layout: WeightLayout, along: int, n: int) -> Tensor:
    """Return the ``n`` signed numbers along a dimension of int32 words, whose numbers are stored without a sign."""
    per_word = WORD // layout.bits
    shape = list(words.shape)
    shape[along] *= per_word
    out = torch.empty(shape, dtype=torch.int8, device=words.device)
    centre = 1 << layout.bits - 1
    for i, place in enumerate(layout.places or range(per_word)):
        numbers = (words >> layout.bits * i & (1 << layout.bits) - 1) - centre
        (out[place::per_word] if along == 0 else out[:, place::per_word]).copy_(numbers)
    return out.narrow(along, 0, n)


def to_memory(
    tensors: Mapping[str, Tensor],
    layout: WeightLayout,
    n_out: int,
    n_in: int,
    rows: slice = ALL,
    columns: slice | None = None,
) -> StoredMatrix:
    """Return a matrix with the numbers of its checkpoint, or some of its rows or columns, as a rank has them.

    Args:
        tensors: as for ``decode``; inputs are in the order of their groups.
        layout: of the checkpoint.
        n_out: outputs of the whole matrix.
        n_in: its inputs.
        rows: that are kept.
        columns: that are kept; None: all.
    """
    numbers, scales, zeros = decode(tensors, layout, n_out, n_in)
    if not layout.is_grouped:
        kept = numbers[rows] if columns is None else numbers[rows, columns].contiguous()
        return StoredMatrix(kept, (scales[rows, 0].float() / layout.divisor).contiguous())
    zeros = zeros if zeros is None else zeros[rows]
    numbers, groups = numbers[rows], _groups(scales[rows], zeros, layout, n_in)
    padded = len(groups.scales[0]) * groups.size
    if padded > n_in:
        numbers = functional.pad(numbers.view(torch.int8), (0, padded - n_in)).view(numbers.dtype)
    if columns is not None:
        groups, kept_groups = groups.columns(columns.start, columns.stop)
        numbers = numbers[:, kept_groups.start * groups.size : kept_groups.stop * groups.size]
    numbers = numbers.contiguous()
    return StoredMatrix(pack(numbers, groups.size) if layout.bits == 4 else numbers, groups)


def to_weights(
    tensors: Mapping[str, Tensor],
    layout: WeightLayout,
    n_out: int,
    n_in: int,
    dtype: torch.dtype,
    order: Tensor | None = None,
) -> Tensor:
    """Return the weights of a matrix ``[n_out, n_in]`` in ``dtype``; ``order`` as ``input_order`` returns it.

    Other arguments are those of ``decode``.
    """
    numbers, scales, zeros = decode(tensors, layout, n_out, n_in)
    groups = _groups(scales, zeros, layout, n_in)
    if order is not None:
        numbers = numbers[:, order]
    padding = len(groups.scales[0]) * groups.size - n_in
    if padding:
        numbers = functional.pad(numbers.view(torch.int8), (0, padding)).view(numbers.dtype)
    weights = widen(numbers, groups, dtype)
    if order is None:
        return weights
    out = torch.empty_like(weights)
    out[:, order] = weights
    return out


def input_order(tensors: Mapping[str, Tensor], layout: WeightLayout) -> Tensor | None:
    """Return the inputs in the order of their groups, int64 ``[n_in]``; None: they are stored in it (no act-order).

    Raises:
        UnsupportedModelError: a group has not the size that the config says.
    """
    groups = tensors.get(layout.order)
    if groups is None or layout.group is None:
        return None
    in_order = torch.arange(len(groups), device=groups.device) // layout.group
    if torch.equal(groups.long(), in_order):
        return None
    ascending, order = groups.long().sort(stable=True)
    if not torch.equal(ascending, in_order):
        raise UnsupportedModelError(f"{layout.order} does not have {layout.group} inputs in each group")
    return order


def _groups(scales: Tensor, zeros: Tensor | None, layout: WeightLayout, n_in: int) -> ScaleGroups:
    size = layout.group or DEFAULT_GROUP
    n_groups = -(-n_in // size)
    wide = zeros if zeros is None else zeros.expand(len(zeros), n_groups).contiguous()
    return ScaleGroups(scales.expand(len(scales), n_groups).contiguous(), wide, size, n_in)


def quantize_as(weight: Tensor, layout: WeightLayout) -> StoredMatrix:
    """Return a weight ``[n_out, n_in]`` with numbers of a layout's kind, on its device, for tests and measurements."""
    size, n_in = layout.group or (DEFAULT_GROUP if layout.is_grouped else weight.shape[1]), weight.shape[1]
    n_groups = -(-n_in // size)
    values = functional.pad(weight.float(), (0, n_groups * size - n_in)).view(len(weight), n_groups, size)
    largest = torch.finfo(FP8_DTYPE).max if layout.is_float else float((1 << layout.bits - 1) - 1)
    scales = values.abs().amax(2).clamp(min=1e-12) / largest
    numbers = values / scales[:, :, None]
    zeros = None
    if layout.zero:  # other than 0, but near
        zeros = (torch.arange(scales.numel(), device=weight.device).view(scales.shape) % 3 - 1).to(torch.int16)
        numbers = numbers + zeros[:, :, None]
    if not layout.is_float:
        numbers = numbers.round().clamp(-largest - 1, largest)
    small = numbers.flatten(1).to(FP8_DTYPE if layout.is_float else torch.int8)
    if not layout.is_grouped:
        return StoredMatrix(small, scales[:, 0])
    groups = ScaleGroups(scales, zeros, size, n_in)
    return StoredMatrix(pack(small, size) if layout.bits == 4 else small, groups)
