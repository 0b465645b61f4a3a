"""Tiny checkpoints in every quantised format that is read.

The package ``compressed_tensors`` quantizes and packs wherever it can, so that this file does not repeat a mistake of
the engine's reader. Scales are fp32 where readers allow it: with a scale in bf16, Hugging Face rounds weights to bf16.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.model.checkpoint_files import CONFIG, SINGLE
from tests.support.wide_models import wide_model

HF_QUANT_CONFIG = "hf_quant_config.json"  # where ModelOpt's older checkpoints describe their format
UNQUANTIZED = "model.layers.1.self_attn.o_proj"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # output of each nibble of a word, from the lowest bits
LARGEST = 448.0  # of e4m3

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Format:
    """A quantised format.

    Args:
        config: the checkpoint's ``quantization_config``.
        store: returns the tensors of a weight ``[n_out, n_in]`` by the last parts of their names.
        inner: width of the MLP; with 192, the last group of 128 inputs is cut short.
        is_apart: whether ``hf_quant_config.json`` has the config.
    """

    config: dict[str, Any]
    store: Callable[[Tensor], Tensors]
    inner: int = 192
    is_apart: bool = False


def quantized_checkpoint(family: str, folder: Path, name: str) -> Path:
    """Write a checkpoint of a wide tiny model in the format ``FORMATS[name]`` into a new folder, and return it."""
    form = FORMATS[name]
    wide_model(family, form.inner).save_pretrained(folder)
    tensors: Tensors = {}
    for key, value in load_file(folder / SINGLE).items():
        owner = key.removesuffix(".weight")
        if is_quantized(key) and owner != UNQUANTIZED:
            tensors |= {f"{owner}.{last}": part for last, part in form.store(value).items()}
        else:
            tensors[key] = value
    save_tensors(folder, tensors, None if form.is_apart else form.config)
    if form.is_apart:
        (folder / HF_QUANT_CONFIG).write_text(json.dumps(form.config))
    return folder


def matrix_tensors(tensors: Mapping[str, Tensor], owner: str) -> Tensors:
    """Return the tensors of a matrix by the last part of their names."""
    return {key.removeprefix(f"{owner}."): value for key, value in tensors.items() if key.startswith(f"{owner}.")}


def is_quantized(name: str) -> bool:
    """Return whether checkpoints have this parameter in a quantised format, unless it is ``UNQUANTIZED``."""
    return name.startswith("model.layers.") and any(f".{part}.weight" in name for part in _MATRICES)


_MATRICES = (*(f"{one}_proj" for one in ("q", "k", "v", "o", "gate", "up", "down")), "w1", "w2", "w3")


def _integers(weight: Tensor, bits: int, group: int, order: Tensor, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers ``[n_out, n_in]`` and zeros ``[n_out, n_groups]``, int8 less half their range, and fp16 scales."""
    n_in, half = weight.shape[1], 1 << bits - 1
    parts = weight[:, order.argsort(stable=True)].split(group if group > 0 else n_in, dim=1)
    low, high = (torch.stack([end(part) for part in parts], 1) for end in (_lowest, _highest))
    if symmetric:
        scales = (torch.maximum(-low, high) / (half - 1)).half()
        zeros = torch.zeros_like(low, dtype=torch.int8)
    else:
        scales = ((high - low) / (2 * half - 1)).half()
        zeros = (-low / scales - half).round().clamp(1 - half, half - 1).to(torch.int8)
    numbers = (weight / scales[:, order] + zeros[:, order]).round().clamp(-half, half - 1).to(torch.int8)
    return numbers, zeros, scales


def _lowest(part: Tensor) -> Tensor:
    return part.amin(1).clamp(max=0)


def _highest(part: Tensor) -> Tensor:
    return part.amax(1).clamp(min=0)


def _gptq(bits: int, group: int, *, symmetric: bool = True, act_order: bool = False, version: str = "gptq") -> Format:
    def store(weight: Tensor) -> Tensors:
        n_in = weight.shape[1]
        order = torch.arange(n_in) // (group if group > 0 else n_in)
        if act_order:
            order = order[torch.randperm(n_in, generator=torch.Generator().manual_seed(n_in))]
        numbers, zeros, scales = _integers(weight, bits, group, order, symmetric)
        return {
            "qweight": pack_to_int32(numbers.T.contiguous(), bits, packed_dim=0),
            "qzeros": pack_to_int32((zeros - int(version == "gptq")).T.contiguous(), bits),
            "scales": scales.T,
            "g_idx": order.int(),
        }

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order}
    return Format(config | {"checkpoint_format": version, "lm_head": False, "damp_percent": 0.01}, store)


def _awq(group: int, inner: int = 192) -> Format:
    def store(weight: Tensor) -> Tensors:
        order = torch.arange(weight.shape[1]) // group
        numbers, zeros, scales = _integers(weight, 4, group, order, symmetric=False)
        places = torch.arange(len(weight)).view(-1, 8)[:, AWQ_ORDER].flatten()
        packed = {"qweight": numbers, "qzeros": zeros}
        return {key: pack_to_int32(part.T[:, places], 4) for key, part in packed.items()} | {"scales": scales.T}

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Format(config | {"modules_to_not_convert": None}, store, inner)


def _compressed(form: str, inner: int = 192, **weights: Any) -> Format:
    """Return a format of compressed-tensors, whose own package makes scales, zeros and numbers."""
    own = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False} | weights
    group: dict[str, Any] = {"targets": ["Linear"], "weights": own, "input_activations": None}
    if form != "pack-quantized":
        group["input_activations"] = {"num_bits": 8, "type": own["type"], "strategy": "token", "dynamic": True}
    scheme = QuantizationScheme.model_validate(group | {"format": form})

    def store(weight: Tensor) -> Tensors:
        parts = _blocks_of(weight, own)
        scale, zero = calculate_qparams(parts.amin((-1, -3)), parts.amax((-1, -3)), scheme.weights)
        shape = (1,) if own["strategy"] == "tensor" else scale.shape
        tensors = {"weight": weight, "weight_scale": scale.reshape(shape)}
        tensors |= {} if own["symmetric"] else {"weight_zero_point": zero.reshape(shape)}
        return BaseCompressor.get_value_from_registry(form).compress(tensors, scheme)

    config = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    config |= {"ignore": ["lm_head", UNQUANTIZED, "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$"]}
    return Format(config | {"config_groups": {"group_0": group}, "kv_cache_scheme": None}, store, inner)


def _blocks_of(weight: Tensor, weights: Mapping[str, Any]) -> Tensor:
    """Return a weight as ``[n_blocks, n_outputs, n_groups, n_inputs]`` of its blocks, padded with zeros."""
    n_out, n_in = weight.shape
    by_strategy = {
        "tensor": (n_out, n_in),
        "channel": (1, n_in),
        "group": (1, weights.get("group_size")),
        "block": weights.get("block_structure"),
    }
    high, wide = by_strategy[weights["strategy"]]
    padded = torch.nn.functional.pad(weight, (0, -n_in % wide, 0, -n_out % high))
    return padded.view(padded.shape[0] // high, high, padded.shape[1] // wide, wide)


def _fp8(config: dict[str, Any], block: tuple[int, int] | None, scale: str, inner: int = 192, **apart: bool) -> Format:
    """Return a format of fp8 with a scale for a block, or for the whole matrix."""

    def store(weight: Tensor) -> Tensors:
        n_out, n_in = weight.shape
        blocks = _blocks_of(weight, {"strategy": "block", "block_structure": block or weight.shape})
        scales = blocks.abs().amax((1, 3)) / LARGEST
        wide = scales.repeat_interleave(blocks.shape[1], 0)[:n_out].repeat_interleave(blocks.shape[3], 1)[:, :n_in]
        numbers = (weight / wide).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        kept = scales if block else scales.reshape(())
        activations = {} if scale == "weight_scale_inv" else {"input_scale": torch.tensor(0.01)}
        return {"weight": numbers, scale: kept, **activations}

    return Format(config, store, inner, **apart)


def save_tensors(folder: Path, tensors: Tensors, quantization: dict[str, Any] | None) -> None:
    """Write the tensors and ``quantization_config`` of a checkpoint, whose folder has a config.json."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / SINGLE, {"format": "pt"})
    config = json.loads((folder / CONFIG).read_text())
    config.pop("quantization_config", None)
    config |= {"quantization_config": quantization} if quantization else {}
    (folder / CONFIG).write_text(json.dumps(config))


_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_MODELOPT = {"quant_algo": "FP8", "kv_cache_quant_algo": None}
_BLOCK = {"strategy": "block", "block_structure": [128, 128]}

FORMATS = {
    "gptq": _gptq(4, 128),
    "gptq asymmetric": _gptq(4, 32, symmetric=False),
    "gptq act-order": _gptq(4, 64, symmetric=False, act_order=True),
    "gptq 8 bits": _gptq(8, 32),
    "gptq 8 bits asymmetric": _gptq(8, 64, symmetric=False),
    "gptq channel": _gptq(4, -1),
    "gptq_v2": _gptq(4, 64, symmetric=False, version="gptq_v2"),
    "awq 32": _awq(32),
    "awq 64": _awq(64),
    "awq 128": _awq(128, inner=256),
    "int4 32": _compressed("pack-quantized", num_bits=4, strategy="group", group_size=32),
    "int4 64 asymmetric": _compressed("pack-quantized", num_bits=4, strategy="group", group_size=64, symmetric=False),
    "int4 128": _compressed("pack-quantized", 256, num_bits=4, strategy="group", group_size=128),
    "int4 channel": _compressed("pack-quantized", num_bits=4),
    "int4 channel asymmetric": _compressed("pack-quantized", num_bits=4, symmetric=False),
    "int8 32": _compressed("pack-quantized", strategy="group", group_size=32),
    "int8 128 asymmetric": _compressed("pack-quantized", 256, strategy="group", group_size=128, symmetric=False),
    "int8 channel packed": _compressed("pack-quantized"),
    "int8 channel": _compressed("int-quantized"),
    "int8 channel asymmetric": _compressed("int-quantized", symmetric=False),
    "fp8 tensor": _compressed("float-quantized", type="float", strategy="tensor"),
    "fp8 channel": _compressed("float-quantized", type="float"),
    "fp8 block": _compressed("float-quantized", type="float", **_BLOCK),
    "fp8 block inverse": _fp8(_FP8 | {"weight_block_size": [128, 128]}, (128, 128), "weight_scale_inv", 256),
    "fp8 block cut short": _fp8(_FP8 | {"weight_block_size": [128, 128]}, (128, 128), "weight_scale_inv"),
    "fp8 tensor inverse": _fp8(_FP8 | {"weight_block_size": None}, None, "weight_scale_inv"),
    "modelopt": _fp8({"quant_method": "modelopt", **_MODELOPT, "ignore": ["lm_head"]}, None, "weight_scale"),
    "modelopt apart": _fp8(
        {"producer": {"name": "modelopt"}, "quantization": {**_MODELOPT, "exclude_modules": ["lm_head"]}},
        None,
        "weight_scale",
        is_apart=True,
    ),
}
