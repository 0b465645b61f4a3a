"""Checkpoints with matrices of one byte, of compressed-tensors (fp8) and of bitsandbytes (int8), and what they mean."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engine.model.loader import SINGLE
from engine.model.quantized import SCALES, is_quantized
from engine.model.scaled import FP8_DTYPE, quantize_rows, scale_of
from tests.support.tiny_models import saved_model, tiny_model

LARGEST = 448.0
IGNORED = "model.layers.1.mlp.up_proj"  # stays as it is, as a recipe may want


def quantization_config(strategy: str = "channel", **weights: Any) -> dict[str, Any]:
    """As ``llmcompressor`` writes it."""
    numbers = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False} | weights
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": numbers, "input_activations": activations}},
        "ignore": ["lm_head", IGNORED],
        "kv_cache_scheme": None,
    }


def fp8_checkpoint(family: str, folder: Path, strategy: str, scale_dtype: torch.dtype = torch.bfloat16) -> Path:
    """A tiny checkpoint with fp8 matrices in its layers and a scale for each output, or for each matrix."""
    shutil.copytree(saved_model(family), folder)
    model, tensors = tiny_model(family), load_file(folder / SINGLE)
    for name in list(tensors):
        if not is_quantized(model, name) or name.startswith(IGNORED):
            continue
        weight = tensors[name]
        per_row = strategy == "channel"
        largest = weight.abs().amax(dim=1, keepdim=True) if per_row else weight.abs().amax()[None]
        scale = (largest / LARGEST).to(scale_dtype)
        tensors[name] = (weight / scale.float()).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        tensors[scale_of(name)] = scale
    save_file(tensors, folder / SINGLE, {"format": "pt"})
    change_config(folder, quantization_config(strategy))
    return folder


def change_config(folder: Path, quantization: dict[str, Any]) -> None:
    """Write another ``quantization_config``."""
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"quantization_config": quantization}))


def meant_model(family: str, folder: Path) -> Any:
    """Hugging Face's model with the numbers that a checkpoint of ``fp8_checkpoint`` stands for."""
    tensors = load_file(folder / SINGLE)
    return _with(family, {
        name: weight.float() * tensors[scale_of(name)].float()
        for name, weight in tensors.items() if scale_of(name) in tensors
    })  # fmt: skip


def int8_checkpoint(family: str, folder: Path) -> Path:
    """A tiny checkpoint as bitsandbytes stores int8: the largest number of every row beside it."""
    shutil.copytree(saved_model(family), folder)
    tensors = load_file(folder / SINGLE)
    for name, (weight, scales) in _made(tiny_model(family), torch.int8).items():
        tensors |= {name: weight, name.removesuffix("weight") + SCALES: scales * 127}
    save_file(tensors, folder / SINGLE, {"format": "pt"})
    change_config(folder, {"quant_method": "bitsandbytes", "load_in_8bit": True})
    return folder


def rounded_model(family: str, dtype: torch.dtype = FP8_DTYPE) -> Any:
    """Hugging Face's model with the numbers that a checkpoint in full precision becomes when it is made fp8 or int8."""
    made = _made(tiny_model(family), dtype)
    return _with(family, {name: weight.float() * scales[:, None] for name, (weight, scales) in made.items()})


def _made(model: Any, dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    matrices = {name: weight for name, weight in model.named_parameters() if is_quantized(model, name)}
    return {name: quantize_rows(weight.detach(), dtype) for name, weight in matrices.items()}


def _with(family: str, changed: dict[str, torch.Tensor]) -> Any:
    model = copy.deepcopy(tiny_model(family))
    model.load_state_dict(changed, strict=False)
    return model
