"""Hugging Face's models with the weights of quantised checkpoints, as other packages read them.

Transformers dequantizes compressed-tensors and fp8 itself. Where it cannot, the package ``compressed_tensors`` does:
for AWQ, for most experts, and for blocks that are cut short at the end of a matrix. No reader of GPTQ can be installed:
its words are unpacked by ``compressed_tensors``, and literals in ``test_layouts`` check the rest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.entrypoints.convert import AutoAWQConverter, FP8BlockDequantizer
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.model.checkpoint_files import CONFIG, SINGLE
from tests.support.quantized_checkpoints import Tensors, matrix_tensors, save_tensors

_WEIGHTS = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv")


def dequantized_model(folder: Path, scratch: Path) -> Any:
    """Return Hugging Face's fp32 model with the weights of a checkpoint; ``scratch`` is a folder that is created."""
    stored = json.loads((folder / CONFIG).read_text())
    config, tensors = stored.get("quantization_config") or {"quant_method": "modelopt"}, load_file(folder / SINGLE)
    if config["quant_method"] == "awq":
        tensors, config = _converted(tensors, config)
    if _is_read_by_transformers(stored, config):
        config = {**config, "dequantize": True}
    else:
        tensors, config = _widened(tensors, config), {}
    shutil.copytree(folder, scratch)
    save_tensors(scratch, tensors, config)
    return AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32).eval()


def _converted(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Return an AWQ checkpoint's tensors and config in the format of compressed-tensors, with fp32 scales."""
    converter = AutoAWQConverter.from_autoawq_config(config)
    wide = {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}
    return converter.process(wide), json.loads(converter.update_config(None).model_dump_json())


def _is_read_by_transformers(stored: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    if config["quant_method"] == "fp8":
        high, _ = config.get("weight_block_size") or (1, 1)
        return bool(stored["intermediate_size"] % high == 0)
    return config["quant_method"] == "compressed-tensors" and "num_experts_per_tok" not in stored


def _widened(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    """Return the fp32 weights of all matrices by their usual names, and the other tensors of the checkpoint."""
    owners = {owner for owner, _, last in (name.rpartition(".") for name in tensors) if last in _WEIGHTS}
    kept = {name: value for name, value in tensors.items() if name.rpartition(".")[0] not in owners}
    for owner in owners:
        parts = matrix_tensors(tensors, owner)
        kept[f"{owner}.weight"] = _weight(parts, config)
        kept |= {f"{owner}.bias": parts["bias"]} if "bias" in parts else {}
    return kept


def _weight(parts: Tensors, config: Mapping[str, Any]) -> Tensor:
    """Return the weight of a matrix, whose tensors are ``parts``, fp32 ``[n_out, n_in]``."""
    if config["quant_method"] == "compressed-tensors":
        (group,) = config["config_groups"].values()
        compressor = BaseCompressor.get_value_from_registry(group.get("format") or config["format"])
        weight: Tensor = compressor.decompress(parts, QuantizationScheme.model_validate(group))["weight"]
        return weight
    if config["quant_method"] == "gptq":
        return _gptq_weight(parts, config)
    if config["quant_method"] == "fp8":
        reader = FP8BlockDequantizer(weight_block_size=tuple(config["weight_block_size"]), dtype=torch.float32)
        return reader.process({f"x.{name}": part for name, part in parts.items()})["x.weight"]
    return parts["weight"].float() * parts["weight_scale"]


def _gptq_weight(parts: Tensors, config: Mapping[str, Any]) -> Tensor:
    bits, (n_groups, n_out), n_in = config["bits"], parts["scales"].shape, len(parts["g_idx"])
    numbers = unpack_from_int32(parts["qweight"], bits, torch.Size((n_in, n_out)), packed_dim=0).int()
    zeros = unpack_from_int32(parts["qzeros"], bits, torch.Size((n_groups, n_out))).int()
    zeros += int(config["checkpoint_format"] == "gptq")
    groups = parts["g_idx"].long()
    return ((numbers - zeros[groups]).float() * parts["scales"].float()[groups]).T.contiguous()
