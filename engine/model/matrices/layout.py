"""Describes how a quantised checkpoint stores the matrices of its decoder layers; refuses other formats by name.

One description covers all formats that are read: GPTQ (Frantar et al., arXiv 2210.17323) and AWQ (Lin et al., arXiv
2306.00978) as AutoGPTQ and AutoAWQ write them, compressed-tensors, fp8 with scales of blocks as DeepSeek and Qwen
publish it, and ModelOpt's fp8.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
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
        has_order: whether the config says that inputs are not in order (act-order).
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
    has_order: bool = False
    is_transposed: bool = False
    packs_outputs: bool = False
    places: tuple[int, ...] = ()
    zero_offset: int = 0
    divisor: float = 1.0

    @property
    def name(self) -> str:
        """Name of the numbers: ``fp8``, ``int4`` or ``int8``."""
        return "fp8" if self.is_float else f"int{self.bits}"

    @property
    def is_packed(self) -> bool:
        """Whether numbers lie in int32 words."""
        return self.weight != "weight"

    @property
    def is_grouped(self) -> bool:
        """Whether numbers need scales of groups in memory, and not only one scale for each output."""
        return self.group is not None or self.bits == 4 or bool(self.zero)

    def has_matrix(self, owner: str, stored: Container[str]) -> bool:
        """Return whether the matrix of linear layer ``owner`` is quantised in a checkpoint with these tensors."""
        names = (self.weight,) if self.is_packed else self.scale
        return any(f"{owner}.{name}" in stored for name in names)

    def suffixes(self, owner: str, stored: Container[str]) -> tuple[str, ...]:
        """Return the last parts of the names of the tensors of a matrix, also of those that are missing."""
        scale = next((name for name in self.scale if f"{owner}.{name}" in stored), self.scale[0])
        order = self.order if f"{owner}.{self.order}" in stored else ""
        return tuple(filter(None, (self.weight, scale, self.zero, order)))


def read_layout(values: Mapping[str, Any]) -> WeightLayout | None:
    """Return the layout that a ``quantization_config`` describes; None: it describes a cache alone.

    Quantised activations and caches are ignored.

    Raises:
        UnsupportedModelError: the format is not read; names the key, its value and what would do.
    """
    method = values.get("quant_method")
    readers = {
        "gptq": _read_gptq,
        "awq": _read_awq,
        "fp8": _read_fp8,
        "fbgemm_fp8": lambda _: WeightLayout(8, is_float=True),
        "modelopt": _read_modelopt,
        "compressed-tensors": _read_compressed,
    }
    name = str(getattr(method, "value", method))
    if name not in readers:
        refuse("quant_method", method if method is None else name)
    return readers[name](values)


def refuse(key: str, value: Any, allowed: str = "") -> NoReturn:
    """Raise the error for a value of quantization_config that is not read."""
    must = f" (it must be {allowed})" if allowed else ""
    raise UnsupportedModelError(f"quantization_config.{key} is {value!r}, which is not read{must}; {WOULD_DO}")


def _read_gptq(values: Mapping[str, Any]) -> WeightLayout:
    form = values.get("checkpoint_format") or values.get("format") or "gptq"
    if form not in ("gptq", "gptq_v2") or values.get("is_marlin_format"):
        refuse("checkpoint_format", "marlin" if values.get("is_marlin_format") else form, "'gptq' or 'gptq_v2'")
    for rule, changes in (values.get("dynamic") or {}).items():
        if not rule.startswith("-") and changes:  # a minus skips modules
            refuse(f"dynamic.{rule}", changes, "left out")
    group = _group(values.get("group_size", -1), "group_size")
    return WeightLayout(
        _bits(values.get("bits"), 4, 8),
        group=group,
        weight="qweight",
        scale=("scales",),
        # Zeros of symmetric weights are 0. Some checkpoints of format gptq store them as gptq_v2 does.
        zero="" if values.get("sym") is True else "qzeros",
        order="g_idx",
        has_order=bool(values.get("desc_act")) and group is not None,
        is_transposed=True,
        zero_offset=1 if form == "gptq" else 0,  # the first version of the format stores zeros less 1
    )


def _read_awq(values: Mapping[str, Any]) -> WeightLayout:
    form = str(values.get("checkpoint_format") or values.get("format") or values.get("version") or "gemm").lower()
    if form != "gemm":
        refuse("version", form, "'gemm'")
    return WeightLayout(
        _bits(values.get("bits", values.get("w_bit")), 4),
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


def _read_modelopt(values: Mapping[str, Any]) -> WeightLayout | None:
    algorithm = values.get("quant_algo")
    if algorithm is None and values.get("kv_cache_quant_algo"):
        return None
    if algorithm not in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
        refuse("quant_algo", algorithm, "'FP8' or 'FP8_PER_CHANNEL_PER_TOKEN'")
    return WeightLayout(8, is_float=True)


def _read_compressed(values: Mapping[str, Any]) -> WeightLayout | None:
    for name in ("sparsity_config", "transform_config"):
        if values.get(name) and values[name].get("format") != "dense":
            refuse(name, values[name], "left out")
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        refuse("config_groups", groups, "an object")
    found = {}
    for name, given in groups.items():
        group = given if isinstance(given, Mapping) else {}
        form = str(group.get("format") or values.get("format"))
        if group.get("weights") is not None:  # else it quantizes activations or the cache alone
            found[name] = _read_scheme(f"config_groups.{name}.weights", group["weights"], form)
    if len({*found.values()}) > 1:
        refuse("config_groups", ", ".join(found), "of one format and group size")
    return next(iter(found.values()), None)


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
    has_order = weights.get("actorder") in (True, "group", "dynamic")  # others keep the order of inputs
    if strategy not in ("tensor", "channel", "group"):
        refuse(f"{name}.strategy", strategy, "'tensor', 'channel' or 'group'")
    return WeightLayout(
        int(kind[3:]),
        group=_group(weights.get("group_size"), f"{name}.group_size") if strategy == "group" else None,
        weight="weight_packed" if is_packed else "weight",
        zero="" if is_symmetric else "weight_zero_point",
        order="weight_g_idx" if has_order else "",
        has_order=has_order,
    )


def _blocks(layout: WeightLayout, values: Mapping[str, Any], key: str) -> WeightLayout:
    """Return the layout with the blocks ``[outputs, inputs]`` of a field; without them if it is missing."""
    block = values.get(key)
    if block is None:
        return layout
    is_pair = isinstance(block, list | tuple) and len(block) == 2 and all(type(size) is int for size in block)
    if not is_pair or block[1] not in GROUP_SIZES or block[0] < 1:
        refuse(key, block, "two numbers, of which the second is 32, 64 or 128")
    return replace(layout, outputs=block[0], group=block[1])


def _group(size: Any, key: str) -> int | None:
    if size is not None and (type(size) is not int or size not in (-1, *GROUP_SIZES)):
        refuse(key, size, f"-1, {', '.join(map(str, GROUP_SIZES[:-1]))} or {GROUP_SIZES[-1]}")
    return None if size == -1 else size


def _bits(value: Any, *allowed: int) -> int:
    if type(value) is not int or value not in allowed:
        refuse("bits", value, " or ".join(map(str, allowed)))
    return value


def plain_patterns(values: Mapping[str, Any]) -> list[str]:
    """Return the patterns of linear layers that a ``quantization_config`` leaves in full precision, for ``matches``."""
    plain = (values.get(key) or () for key in ("ignore", "modules_to_not_convert", "exclude_modules"))
    dynamic = [f"re:{rule[2:]}" for rule in values.get("dynamic") or () if rule.startswith("-:")]
    return [pattern for patterns in plain for pattern in patterns] + dynamic


def matches(pattern: str, module: str) -> bool:
    """Return whether a module has a name, a part of it, or one that a glob or a regular expression describes."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return fnmatchcase(module, pattern) if "*" in pattern else f".{pattern}." in f".{module}."
