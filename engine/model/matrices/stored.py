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
from engine.model.matrices.linears import FP8_DTYPE, WEIGHTS_AT_ONCE, ScaledLinear
from engine.model.matrices.part import OUTER, WeightPart

DEFAULT_GROUP = 128  # inputs of a group in memory if an output has one scale, but its numbers need groups
WORD = 32  # bits
_SCALES = (torch.float32, torch.bfloat16, torch.float16)
Tensors = Mapping[str, Tensor]  # of a matrix, by the last part of their names
Allowed = tuple[tuple[Sequence[int], ...], tuple[torch.dtype, ...]]  # shapes and dtypes of a tensor


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


def allowed_tensors(layout: WeightLayout, n_out: int, n_in: int) -> dict[str, Allowed]:
    """Return the shapes and dtypes that each tensor of a matrix may have, by the last part of its name."""
    n_groups, per_word = -(-n_in // (layout.group or n_in)), WORD // layout.bits
    blocks = -(-n_out // layout.outputs)
    scales: tuple[Sequence[int], ...] = ((n_groups, blocks) if layout.is_transposed else (blocks, n_groups),)
    if layout.group is None and not layout.is_transposed:
        scales = ((n_out, 1), (n_out,), (1,), (1, 1), ())
    words, packed_out = -(-n_in // per_word), -(-n_out // per_word)
    weight: tuple[int, ...] = (n_out, n_in)
    if layout.is_packed:
        weight = (n_out, words)
        if layout.is_transposed:
            weight = (n_in, packed_out) if layout.packs_outputs else (words, n_out)
    zeros = ((n_groups, packed_out),) if layout.is_transposed else ((packed_out, n_groups), (n_out, n_groups), (n_out,))
    plain = FP8_DTYPE if layout.is_float else torch.int8
    return {
        layout.weight: ((weight,), (torch.int32 if layout.is_packed else plain,)),
        **dict.fromkeys(layout.scale, (scales, _SCALES)),
        layout.zero: (zeros, (torch.int32, torch.int8)),
        layout.order: (((n_in,),), (torch.int32, torch.int64)),
    }


def to_memory(tensors: Tensors, layout: WeightLayout, n_out: int, n_in: int, part: WeightPart | None) -> StoredMatrix:
    """Return a matrix with the numbers of its checkpoint, or a part of it, which shares no memory with the rest.

    Args:
        tensors: with allowed shapes. The numbers may be only the rows of the part.
        layout: of the checkpoint.
        n_out: outputs of the whole matrix.
        n_in: its inputs, which are in the order of their groups.
        part: that a rank has; None: all.
    """
    if layout.is_grouped:
        numbers, groups = _in_groups(tensors, layout, n_out, n_in)
        if part is not None and part.dim == OUTER:
            numbers, groups = _rows(numbers, part, n_out), groups.rows(part.first, part.last).copy()
        elif part is not None:
            groups, kept = groups.columns(part.first, part.last)
            numbers = numbers[:, kept.start * groups.size : kept.stop * groups.size]
        numbers = numbers.contiguous()
        return StoredMatrix(pack(numbers, groups.size) if layout.bits == 4 else numbers, groups)
    numbers, scales, _ = decode(tensors, layout, n_out, n_in)
    scales = (scales[:, 0].float() / layout.divisor).contiguous()
    if part is None:
        return StoredMatrix(numbers, scales)
    if part.dim == OUTER:
        return StoredMatrix(_rows(numbers, part, n_out), part.of(scales).clone())
    return StoredMatrix(part.of(numbers).contiguous(), scales)


def _rows(numbers: Tensor, part: WeightPart, n_out: int) -> Tensor:
    """Return the rows of a part; a slice would keep the whole matrix in memory."""
    return numbers if len(numbers) < n_out else part.of(numbers).clone()


def to_weights(
    tensors: Tensors,
    layout: WeightLayout,
    n_out: int,
    n_in: int,
    dtype: torch.dtype,
    part: WeightPart | None = None,
) -> Tensor:
    """Return the weights of a matrix ``[n_out, n_in]``, or of a part of it, in ``dtype``.

    Arguments are those of ``to_memory``, but inputs may be in any order.

    Raises:
        UnsupportedModelError: a group has not the size that the config says.
    """
    order = input_order(tensors, layout)
    numbers, groups = _in_groups(tensors, layout, n_out, n_in, order)
    own = range(n_out)[slice(part.first, part.last) if part is not None and part.dim == OUTER else slice(None)]
    columns = slice(part.first, part.last) if part is not None and part.dim != OUTER else slice(None)
    skipped = own.start if len(numbers) < n_out else 0
    n_rows = n_out if part is None or part.dim != OUTER else part.last - part.first  # a head's may exceed the matrix
    out = torch.zeros(n_rows, len(range(n_in)[columns]), dtype=dtype, device=numbers.device)
    step = max(1, WEIGHTS_AT_ONCE // n_in)  # rows; the temporary memory is several times the result
    for first in range(own.start, own.stop, step):
        last = min(first + step, own.stop)
        weights = widen(numbers[first - skipped : last - skipped], groups.rows(first, last), dtype)
        if order is not None:
            weights = torch.empty_like(weights).index_copy_(1, order, weights)
        out[first - own.start : last - own.start] = weights[:, columns]
    return out


def _in_groups(
    tensors: Tensors, layout: WeightLayout, n_out: int, n_in: int, order: Tensor | None = None
) -> tuple[Tensor, ScaleGroups]:
    """Return numbers ``[n_out, n_groups * size]`` and their groups; ``order`` puts inputs into that of their groups."""
    numbers, scales, zeros = decode(tensors, layout, n_out, n_in)
    if order is not None:
        numbers = numbers[:, order]
    size = layout.group or DEFAULT_GROUP
    n_groups = -(-n_in // size)
    if padding := n_groups * size - n_in:
        numbers = functional.pad(numbers.view(torch.int8), (0, padding)).view(numbers.dtype)
    wide = zeros if zeros is None else zeros.expand(n_out, n_groups).contiguous()
    return numbers, ScaleGroups(scales.expand(n_out, n_groups).contiguous(), wide, size, n_in)


def decode(tensors: Tensors, layout: WeightLayout, n_out: int, n_in: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return numbers int8 or fp8 ``[n_out, n_in]``, scales ``[n_out, n_groups]`` and zeros int16 like them, or None.

    Args:
        tensors: as for ``to_memory``.
        layout: of the checkpoint.
        n_out: outputs.
        n_in: inputs.
    """
    numbers = tensors[layout.weight]
    if layout.is_packed:
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
        zeros = (zeros.T if layout.is_transposed else zeros.reshape(n_out, -1)).to(torch.int16)
        if layout.zero_offset:  # -1 is stored as the largest number
            centre, largest = 1 << layout.bits - 1, (1 << layout.bits) - 1
            zeros = (zeros + centre + layout.zero_offset & largest) - centre
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


def input_order(tensors: Tensors, layout: WeightLayout) -> Tensor | None:
    """Return the inputs in the order of their groups, int64 ``[n_in]``; None: they are stored in it (no act-order).

    Raises:
        UnsupportedModelError: a group has not the size that the config says.
    """
    groups = tensors.get(layout.order)
    if groups is None or layout.group is None or bool((groups == -1).all()):
        return None
    in_order = torch.arange(len(groups), device=groups.device) // layout.group
    if torch.equal(groups.long(), in_order):
        return None
    ascending, order = groups.long().sort(stable=True)
    if not torch.equal(ascending, in_order):
        raise UnsupportedModelError(f"{layout.order} does not have {layout.group} inputs in each group")
    return order


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
