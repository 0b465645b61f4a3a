"""A checkpoint whose tensors are not of the shapes that its config says is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedModelError
from engine.model.loader import EMBED, SINGLE, load_shard
from engine.model.quantized import SCALES, quantize
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from tests.support.tiny_models import saved_model

CPU = torch.device("cpu")
MATRIX = "model.layers.1.mlp.up_proj.weight"  # [48, 32]
NORM = "model.layers.1.input_layernorm.weight"  # [32]
TRANSPOSED = f"'{MATRIX}' in .* has the shape \\[32, 48\\], .* needs \\[48, 32\\]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(saved_model("llama"), tmp_path / "model")
    return tmp_path / "model"


def put(folder: Path, **tensors: torch.Tensor) -> None:
    save_file(load_file(folder / SINGLE) | tensors, folder / SINGLE)


def load(folder: Path, quantization: str | None = None) -> ModelShard:
    whole = LayerRange(0, 4, 4)
    return load_shard(folder, whole, dtype=torch.float32, device=CPU, n_positions=8, quantization=quantization)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_transposed_matrix_is_refused(folder: Path, quantization: str | None) -> None:
    put(folder, **{MATRIX: torch.ones(32, 48)})
    with pytest.raises(UnsupportedModelError, match=TRANSPOSED):
        load(folder, quantization)


@pytest.mark.parametrize(
    ("name", "shape"),
    [(NORM, (1,)), (NORM, (1, 32)), (EMBED, (96, 32)), (EMBED, (98, 32)), ("lm_head.weight", (32, 97))],
)
def test_a_tensor_of_another_shape_is_refused(folder: Path, name: str, shape: tuple[int, ...]) -> None:
    put(folder, **{name: torch.ones(shape)})
    with pytest.raises(UnsupportedModelError, match=f"'{name}' in .* has the shape"):
        load(folder)


def test_stored_int8_needs_a_scale_for_every_row(folder: Path) -> None:
    weight, scales = quantize(load_file(folder / SINGLE)[MATRIX], CPU)
    name = MATRIX.removesuffix("weight") + SCALES
    put(folder, **{MATRIX: weight, name: scales})
    load(folder, "int8")
    put(folder, **{name: scales[:1].clone()})
    with pytest.raises(UnsupportedModelError, match=f"'{name}' in .* has the shape \\[1\\], .* needs \\[48\\]"):
        load(folder, "int8")
    put(folder, **{MATRIX: weight.T.contiguous(), name: scales})
    with pytest.raises(UnsupportedModelError, match=TRANSPOSED):
        load(folder, "int8")
