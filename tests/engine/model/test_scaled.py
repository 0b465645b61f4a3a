"""Weights of one byte with a scale per row or matrix: fp8 anywhere, int8 on a GPU."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine import device
from engine.errors import ConfigError, UnsupportedModelError
from engine.model.checkpoint_files import SINGLE
from engine.model.loader import load_shard
from engine.model.matrices import quantization
from engine.model.matrices.linears import ScaledLinear, quantize_rows
from engine.model.matrices.quantization import SCALES
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from tests.support.engines import complete_all, make_engine
from tests.support.fp8_checkpoints import (
    dequantized_model,
    fp8_checkpoint,
    int8_checkpoint,
    rounded_model,
    scale_of,
)
from tests.support.tiny_models import random_prompts, saved_model

CPU = torch.device("cpu")
WHOLE = LayerRange(0, 4, 4)
FP8 = torch.float8_e4m3fn
N_TOKENS = 12


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU passes for a GPU where that decides how int8 runs; bitsandbytes is not installed."""
    monkeypatch.setattr(device, "is_host", lambda _: False)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)


def shard_of(path: Path, quantization: str | None = None) -> ModelShard:
    return load_shard(path, WHOLE, dtype=torch.float32, device=CPU, n_positions=8, quantization=quantization)


def matrices_of(shard: ModelShard) -> dict[str, ScaledLinear]:
    return {
        f"model.layers.{i}.{name}": module
        for i, layer in enumerate(shard.layers)
        for name, module in layer.named_modules()
        if isinstance(module, ScaledLinear)
    }


def fp8_by(strategy: str) -> Callable[[str, Path], Path]:
    return lambda family, folder: fp8_checkpoint(family, folder, strategy)


@pytest.mark.parametrize(
    ("family", "dtype", "make"),
    [
        ("llama", FP8, fp8_by("channel")),
        ("gemma3", FP8, fp8_by("tensor")),
        ("qwen3", FP8, None),
        ("qwen2", torch.int8, int8_checkpoint),
        ("llama", torch.int8, None),
    ],
    ids=["stored fp8, channel", "stored fp8, tensor", "made fp8", "stored int8", "made int8"],
)
@pytest.mark.usefixtures("gpu")
def test_texts_are_those_of_hugging_face_with_the_same_numbers(
    family: str, dtype: torch.dtype, make: Callable[[str, Path], Path] | None, tmp_path: Path
) -> None:
    path = saved_model(family) if make is None else make(family, tmp_path / "quantized")
    name = ("fp8" if dtype == FP8 else "int8") if make is None else None
    is_fp8 = make is not None and dtype == FP8
    model: Any = dequantized_model(family, path) if is_fp8 else rounded_model(family, dtype)
    texts = random_prompts(2)
    expected = [
        model.generate(torch.tensor([text]), max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=2)[0, len(text) :]
        for text in texts
    ]
    for stages, method in ((1, "pld"), (3, "autoregressive")):
        options = TargetOptions(str(path), stages=stages, kv_bytes=1 << 20, block_size=16, quantization=name)
        jobs = [Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,)), method) for text in texts]
        done = complete_all(make_engine(LocalTarget.load(options, path)), jobs)
        assert [one.token_ids for one in done] == [text.tolist() for text in expected]


@pytest.mark.parametrize("dtype", [FP8, torch.int8], ids=str)
def test_rows_are_rounded_to_the_nearest(dtype: torch.dtype) -> None:
    weight = torch.randn(5, 300) * torch.tensor([1.0, 1e-20, 1e20, 0.0, 3.0])[:, None]
    weight[4, 0] = 1000.0
    quantized, scales = quantize_rows(weight, dtype)
    assert quantized.dtype == dtype
    error = (quantized.float() * scales[:, None] - weight).abs()
    largest = weight.abs().amax(1, keepdim=True)
    # Half the distance between neighbours: int8 from the row's largest, fp8 of a number's own size.
    size = largest / 127 if dtype == torch.int8 else torch.maximum(weight.abs() / 8, largest / 448 / 2**9)
    assert bool((error <= 0.5001 * size).all())
    assert torch.equal(quantized[3].float(), torch.zeros(300))


def test_half_precision_products_are_near_those_in_fp32() -> None:
    torch.manual_seed(3)
    weight, scales = quantize_rows(torch.randn(40, 64))
    bias, rows = torch.randn(40).bfloat16(), torch.randn(3, 64).bfloat16()
    found = ScaledLinear(weight, scales, torch.nn.Parameter(bias, requires_grad=False))(rows)
    assert found.dtype == torch.bfloat16
    exact = rows.float() @ (weight.float() * scales[:, None]).T + bias.float()
    torch.testing.assert_close(found.float(), exact, rtol=2**-6, atol=2**-4)
    large, loud = torch.randn(5, 4096) * 0.02, torch.randn(2, 4096)
    large[:, 17], loud[:, 17] = 0.07, 2000.0  # times 127 this overflows fp16
    layer = ScaledLinear(*quantize_rows(large, torch.int8), None)
    torch.testing.assert_close(layer(loud.half()).float(), layer(loud.half().float()), rtol=0.02, atol=0.2)


def test_a_quantization_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fp8_checkpoint("llama", tmp_path / "fp8", "channel")
    with pytest.raises(ConfigError, match="quantization is 'int8', but the checkpoint's weights are fp8; leave it out"):
        shard_of(path, "int8")
    with pytest.raises(ConfigError, match="quantization is 'int4'; it must be int8"):
        shard_of(saved_model("llama"), "int4")
    quantization.bitsandbytes.cache_clear()
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"bitsandbytes, which is not installed: pip install 'spectra-serve\[int8\]'"):
        shard_of(saved_model("llama"), "int8")


DOWN = "model.layers.1.mlp.down_proj.weight"  # [32, 48]
NORM = "model.layers.1.input_layernorm.weight"  # [32]
EMBED = "model.embed_tokens.weight"  # [97, 32]
HEAD = "lm_head.weight"
INT8_SCALE = DOWN.removesuffix("weight") + SCALES
TRANSPOSED = rf"'{DOWN}' in .* has the shape \[48, 32\], .* needs \[32, 48\]"


def fp8_of(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Stores a matrix in fp8 without its scale."""
    return lambda stored: (
        {key: value for key, value in stored.items() if key != scale_of(name)} | {name: stored[name].to(FP8)}
    )


def shaped(name: str, *shape: int) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda stored: stored | {name: torch.ones(shape).to(stored[name].dtype)}


@pytest.mark.parametrize(
    ("make", "quantization", "change", "message"),
    [
        (None, None, shaped(DOWN, 48, 32), TRANSPOSED),
        (None, "int8", shaped(DOWN, 48, 32), TRANSPOSED),
        (None, None, shaped(NORM, 1), f"'{NORM}' in .* has the shape"),
        (None, None, shaped(NORM, 1, 32), f"'{NORM}' in .* has the shape"),
        (None, None, shaped(EMBED, 96, 32), f"'{EMBED}' in .* has the shape"),
        (None, None, shaped(HEAD, 32, 97), f"'{HEAD}' in .* has the shape"),
        (fp8_by("channel"), None, shaped(scale_of(DOWN), 2, 3), rf"{scale_of(DOWN)}' .* \[2, 3\].* \[32, 1\]"),
        (fp8_by("channel"), None, fp8_of(DOWN), f"'{DOWN}' in .* is float8_e4m3fn without a scale"),
        (fp8_by("channel"), None, fp8_of(HEAD), f"'{HEAD}' in .* is float8_e4m3fn without a scale"),
        (int8_checkpoint, None, shaped(INT8_SCALE, 1), rf"'{INT8_SCALE}' in .* has the shape \[1\], .* needs \[32\]"),
        (int8_checkpoint, None, shaped(DOWN, 48, 32), TRANSPOSED),
    ],
)
def test_a_tensor_of_another_shape_than_the_config_says_is_refused(
    make: Callable[[str, Path], Path] | None,
    quantization: str | None,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    message: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / "model"
    if make is None:
        shutil.copytree(saved_model("llama"), path)
    else:
        make("llama", path)
    save_file(change(load_file(path / SINGLE)), path / SINGLE)
    with pytest.raises(UnsupportedModelError, match=message):
        shard_of(path, quantization)
