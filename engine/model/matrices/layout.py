"""Describes how a quantised checkpoint stores the matrices of its decoder layers; refuses other formats by name.

One description covers all formats that are read: GPTQ (Frantar et al., arXiv 2210.17323) and AWQ (Lin et al., arXiv
2306.00978) as AutoGPTQ and AutoAWQ write them, compressed-tensors, fp8 with scales of blocks as DeepSeek and Qwen
publish it, and ModelOpt's fp8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from engine.errors import UnsupportedModelError

GROUP_SIZES = (32, 64, 128)  # inputs of a group that kernels multiply at once
WOULD_DO = "full precision, fp8, AWQ, GPTQ or compressed-tensors (int4, int8, fp8) of the same model would do"
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_FORMATS = {  # of compressed-tensors, by type and bits
    "float8": ("float-quantized", "naive-quantized"),
    "int8": ("pack-quantized", "int-quantized", "naive-quantized"),
    "int4": ("pack-quantized",),
}


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """How a matrix ``[n_out, n_in]`` is stored: in which tensors, and what their numbers mean.

    A weight is ``(number - zero) * scale``.

    Args:
        bits: of a number, 4 or 8.
        is_float: whether numbers are fp8 (e4m3); else they are integers.
        group: inputs that share a scale; None: all inputs of an output do, or the whole matrix.
        outputs: number of outputs that share a scale, if ``group`` is given.
        weight: last part of the name of the tensor with the numbers. int32 words have ``32 / bits`` numbers each.
        scale: the same of the scales; of several names the checkpoint has one.
        zero: the same of the zeros, words with outputs side by side or plain int8; "": zeros are 0.
        order: the same of the group of every input, which is optional; "": inputs are in order.
        is_transposed: whether tensors are stored as ``[n_in, n_out]``.
        packs_outputs: whether a word has numbers of neighbouring outputs, not inputs.
        places: numbers of a word, beginning with the lowest bits, by their places; (): in order.
        zero_offset: is added to stored zeros.
        divisor: of stored scales.
    """

    bits: int
    is_float: bool = False
    group: int | None = None
    outputs: int = 1
    weight: str = "weight"
    scale: tuple[str, ...] = ("weight_scale",)
    zero: str = ""
    order: str = ""
    is_transposed: bool = False
    packs_outputs: bool = False
    places: tuple[int, ...] = ()
    zero_offset: int = 0
    divisor: float = 1.0

    @property
    def is_grouped(self) -> bool:
        """Whether numbers need scales of groups in memory, and not only one scale for each output."""
        return self.group is not None or self.bits == 4 or bool(self.zero)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Last parts of the names of all tensors that a matrix may have."""
        return tuple(filter(None, (self.weight, *self.scale, self.zero, self.order)))


def read_layout(values: Mapping[str, Any]) -> WeightLayout:
    """Return the layout that a ``quantization_config`` describes. Quantised activations and caches are ignored.

    Raises:
        UnsupportedModelError: the format is not read; names the key, its value and what would do.
    """
    method = str(getattr(values.get("quant_method"), "value", values.get("quant_method")))
    reader = {
        "gptq": _read_gptq,
        "awq": _read_awq,
        "fp8": _read_fp8,
        "modelopt": _read_modelopt,
        "compressed-tensors": _read_compressed,
    }.get(method)
    if reader is None:
        refuse("quant_method", method)
    return reader(values)


def refuse(key: str, value: Any, allowed: str = "") -> NoReturn:
    """Raise the error for a value of quantization_config that is not read."""
    must = f" (it must be {allowed})" if allowed else ""
    raise UnsupportedModelError(f"quantization_config.{key} is {value!r}, which is not read{must}; {WOULD_DO}")


def _read_gptq(values: Mapping[str, Any]) -> WeightLayout:
    bits, form = values.get("bits"), values.get("checkpoint_format", "gptq")
    if bits not in (4, 8):
        refuse("bits", bits, "4 or 8")
    if form not in ("gptq", "gptq_v2") or values.get("is_marlin_format"):
        refuse("checkpoint_format", "marlin" if values.get("is_marlin_format") else form, "'gptq' or 'gptq_v2'")
    return WeightLayout(
        bits,
        group=_group(values.get("group_size", -1), "group_size"),
        weight="qweight",
        scale=("scales",),
        zero="qzeros",
        order="g_idx",
        is_transposed=True,
        zero_offset=1 if form == "gptq" else 0,  # the first version of the format stores zeros less 1
    )


def _read_awq(values: Mapping[str, Any]) -> WeightLayout:
    bits, version = values.get("bits", values.get("w_bit")), str(values.get("version", "gemm")).lower()
    if bits != 4:
        refuse("bits", bits, "4")
    if version != "gemm":
        refuse("version", version, "'gemm'")
    return WeightLayout(
        bits,
        group=_group(values.get("group_size", values.get("q_group_size", 128)), "group_size"),
        weight="qweight",
        scale=("scales",),
        zero="qzeros" if values.get("zero_point", True) else "",
        is_transposed=True,
        packs_outputs=True,
        places=_AWQ_ORDER,
    )


def _read_fp8(values: Mapping[str, Any]) -> WeightLayout:
    if values.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        refuse("fmt", values["fmt"], "'e4m3'")
    return _blocks(WeightLayout(8, True, scale=("weight_scale_inv", "weight_scale")), values, "weight_block_size")


def _read_modelopt(values: Mapping[str, Any]) -> WeightLayout:
    algorithm = values.get("quant_algo")
    if algorithm not in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
        refuse("quant_algo", algorithm, "'FP8' or 'FP8_PER_CHANNEL_PER_TOKEN'")
    return WeightLayout(8, is_float=True)


def _read_compressed(values: Mapping[str, Any]) -> WeightLayout:
    for name in ("sparsity_config", "transform_config"):
        if values.get(name):
            refuse(name, values[name], "left out")
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        refuse("config_groups", groups, "an object")
    found = {}
    for name, given in groups.items():
        group = given if isinstance(given, Mapping) else {}
        form = str(group.get("format") or values.get("format"))
        found[name] = _read_scheme(f"config_groups.{name}.weights", group.get("weights") or {}, form)
    first, *others = found.values()
    if any(one != first for one in others):
        refuse("config_groups", ", ".join(found), "of one format and group size")
    return first


def _read_scheme(name: str, weights: Mapping[str, Any], form: str) -> WeightLayout:
    """Return the layout of one group of compressed-tensors, whose field ``name`` is ``weights``."""
    kind, strategy = f"{weights.get('type')}{weights.get('num_bits')}", weights.get("strategy")
    is_packed, is_symmetric = form == "pack-quantized", weights.get("symmetric", True)
    if kind not in _FORMATS:
        refuse(name, f"{kind}, {form}", ", ".join(_FORMATS))
    if form not in _FORMATS[kind]:
        refuse("format", form, f"{' or '.join(map(repr, _FORMATS[kind]))} for {kind}")
    if kind == "float8":
        if not is_symmetric:
            refuse(f"{name}.symmetric", is_symmetric, "true for float8")
        layout = WeightLayout(8, is_float=True)
        if strategy == "block":
            return _blocks(layout, weights, "block_structure")
        if strategy not in ("tensor", "channel"):
            refuse(f"{name}.strategy", strategy, "'tensor', 'channel' or 'block'")
        return layout
    if strategy not in ("tensor", "channel", "group"):
        refuse(f"{name}.strategy", strategy, "'tensor', 'channel' or 'group'")
    return WeightLayout(
        int(kind[3:]),
        group=_group(weights.get("group_size"), f"{name}.group_size") if strategy == "group" else None,
        weight="weight_packed" if is_packed else "weight",
        zero="" if is_symmetric else "weight_zero_point",
        order="weight_g_idx" if weights.get("actorder") else "",
    )


def _blocks(layout: WeightLayout, values: Mapping[str, Any], key: str) -> WeightLayout:
    """Return the layout with the blocks ``[outputs, inputs]`` of a field; without them if it is missing."""
    block = values.get(key)
    if block is None:
        return layout
    if not isinstance(block, list | tuple) or len(block) != 2 or block[1] not in GROUP_SIZES or block[0] < 1:
        refuse(key, block, "two numbers, of which the second is 32, 64 or 128")
    return replace(layout, outputs=block[0], group=block[1])


def _group(size: Any, key: str) -> int | None:
    if size not in (None, -1, *GROUP_SIZES):
        refuse(key, size, f"-1, {', '.join(map(str, GROUP_SIZES[:-1]))} or {GROUP_SIZES[-1]}")
    return None if size in (None, -1) else int(size)
