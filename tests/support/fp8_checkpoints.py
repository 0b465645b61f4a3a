"""Checkpoints with matrices of one byte (fp8 of compressed-tensors, int8 of bitsandbytes), and the same numbers in
Hugging Face's models."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engine.model.checkpoint_files import SINGLE
from engine.model.matrices.linears import is_layer_matrix, quantize_rows
from engine.model.matrices.quantization import SCALES
from tests.support.tiny_models import saved_model, tiny_model

LARGEST = 448.0
UNQUANTIZED = "model.layers.1.mlp.up_proj"


def scale_of(weight: str) -> str:
    """``X.weight`` -> ``X.weight_scale``"""
    return f"{weight}_scale"


def quantization_config(strategy: str = "channel", **weights: Any) -> dict[str, Any]:
    """As ``llmcompressor`` writes it."""
    numbers = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False} | weights
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": numbers, "input_activations": activations}},
        "ignore": ["lm_head", UNQUANTIZED],
        "kv_cache_scheme": None,
    }


def fp8_checkpoint(family: str, folder: Path, strategy: str, scale_dtype: torch.dtype = torch.bfloat16) -> Path:
    """A tiny checkpoint with fp8 matrices in its layers and a scale for each output ("channel") or matrix."""
    shutil.copytree(saved_model(family), folder)
    model, tensors = tiny_model(family), load_file(folder / SINGLE)
    for name in list(tensors):
        if not is_layer_matrix(model, name) or name.startswith(UNQUANTIZED):
            continue
        weight = tensors[name]
        largest = weight.abs().amax(dim=1, keepdim=True) if strategy == "channel" else weight.abs().amax()[None]
        scale = (largest / LARGEST).to(scale_dtype)
        tensors[name] = (weight / scale.float()).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        tensors[scale_of(name)] = scale
    return _save(folder, tensors, quantization_config(strategy))


def int8_checkpoint(family: str, folder: Path) -> Path:
    """A tiny checkpoint as bitsandbytes stores int8, with the largest number of every row."""
    shutil.copytree(saved_model(family), folder)
    tensors = load_file(folder / SINGLE)
    for name, (weight, scales) in _quantized(tiny_model(family), torch.int8).items():
        tensors |= {name: weight, name.removesuffix("weight") + SCALES: scales * 127}
    return _save(folder, tensors, {"quant_method": "bitsandbytes", "load_in_8bit": True})


def dequantized_model(family: str, folder: Path) -> Any:
    """Hugging Face's model with the numbers of a checkpoint of ``fp8_checkpoint``."""
    tensors = load_file(folder / SINGLE)
    scaled = [name for name in tensors if scale_of(name) in tensors]
    return _changed(family, {name: tensors[name].float() * tensors[scale_of(name)].float() for name in scaled})


def rounded_model(family: str, dtype: torch.dtype) -> Any:
    """Hugging Face's model with the numbers of a checkpoint that is quantised to fp8 or int8 while it is loaded."""
    made = _quantized(tiny_model(family), dtype)
    return _changed(family, {name: weight.float() * scales[:, None] for name, (weight, scales) in made.items()})


def _save(folder: Path, tensors: dict[str, torch.Tensor], quantization: dict[str, Any]) -> Path:
    save_file(tensors, folder / SINGLE, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return folder


def _quantized(model: Any, dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    matrices = {name: weight for name, weight in model.named_parameters() if is_layer_matrix(model, name)}
    return {name: quantize_rows(weight.detach(), dtype) for name, weight in matrices.items()}


def _changed(family: str, tensors: dict[str, torch.Tensor]) -> Any:
    model = copy.deepcopy(tiny_model(family))
    model.load_state_dict(tensors, strict=False)
    return model
