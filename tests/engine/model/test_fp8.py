"""fp8 weights: Hugging Face's modules with the numbers that they stand for, as stored and as made at load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import ConfigError, UnsupportedModelError
from engine.model.loader import SINGLE, layer_files, load_config, load_shard, load_spec
from engine.model.ranges import LayerRange
from engine.model.scaled import ScaledLinear, quantize_rows, scale_of
from engine.model.shard import ModelShard
from engine.model.sizes import weight_bytes
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from tests.support.engines import complete_all, make_engine
from tests.support.fp8_checkpoints import (
    IGNORED,
    change_config,
    fp8_checkpoint,
    meant_model,
    quantization_config,
    rounded_model,
)
from tests.support.tiny_models import random_prompts, saved_model

CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn
MATRIX = "model.layers.1.mlp.down_proj.weight"  # [32, 48]
N_TOKENS = 12


def load(path: Path, stages: int = 1, quantization: str | None = None) -> LocalTarget:
    options = TargetOptions(str(path), stages=stages, kv_bytes=1 << 20, block_size=16, quantization=quantization)
    return LocalTarget.load(options, path)


def shard_of(path: Path, quantization: str | None = None) -> ModelShard:
    whole = LayerRange(0, 4, 4)
    return load_shard(path, whole, dtype=torch.float32, device=CPU, n_positions=8, quantization=quantization)


def matrices_of(shard: ModelShard) -> dict[str, ScaledLinear]:
    """By name in its layer, of all layers; a name that only some layers have comes from those."""
    return {
        f"{i}.{name}": module
        for i, layer in enumerate(shard.layers)
        for name, module in layer.named_modules()
        if isinstance(module, ScaledLinear)
    }


def written(target: LocalTarget, texts: list[list[int]], method: str) -> list[list[int]]:
    jobs = [Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,)), method) for text in texts]
    return [one.token_ids for one in complete_all(make_engine(target), jobs)]


def their_text(model: Any, prompt: list[int]) -> list[int]:
    found = model.generate(torch.tensor([prompt]), max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=2)
    text: list[int] = found[0, len(prompt) :].tolist()
    return text


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_the_text_of_a_stored_checkpoint_is_hugging_faces(family: str, strategy: str, tmp_path: Path) -> None:
    path = fp8_checkpoint(family, tmp_path / "fp8", strategy)
    assert load_spec(path).n_layers == 4
    model, texts = meant_model(family, path), random_prompts(2)
    wanted = [their_text(model, text) for text in texts]
    for stages, told, method in ((1, None, "pld"), (3, "fp8", "autoregressive")):
        assert written(load(path, stages, told), texts, method) == wanted


def test_the_text_of_weights_made_fp8_is_hugging_faces() -> None:
    model, texts = rounded_model("qwen3"), random_prompts(2)
    wanted = [their_text(model, text) for text in texts]
    for stages in (1, 2):
        assert written(load(saved_model("qwen3"), stages, "fp8"), texts, "pld") == wanted


@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_numbers_and_scales_are_as_stored(strategy: str, scale_dtype: torch.dtype, tmp_path: Path) -> None:
    path = fp8_checkpoint("llama", tmp_path / "fp8", strategy, scale_dtype)
    stored, found = load_file(path / SINGLE), matrices_of(shard_of(path))
    assert len(found) == 4 * 7 - 1
    for name, module in found.items():
        full = f"model.layers.{name}.weight"
        assert torch.equal(module.get_buffer("weight").float(), stored[full].float())
        scales = module.get_buffer("output_scales")
        assert scales.shape == stored[full].shape[:1]
        assert torch.equal(scales, stored[scale_of(full)].float().flatten().expand_as(scales))


def test_a_stage_needs_the_files_of_its_scales(tmp_path: Path) -> None:
    path = fp8_checkpoint("llama", tmp_path / "fp8", "channel")
    tensors = load_file(path / SINGLE)
    files = {name: "scales.safetensors" if name.endswith("_scale") else "weights.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, path / file)
    (path / SINGLE).unlink()
    index = {"weight_map": files}
    (path / "model.safetensors.index.json").write_text(str(index).replace("'", '"'))
    assert layer_files(path, LayerRange(1, 2, 4), False) == set(files.values())
    assert len(matrices_of(shard_of(path))) == 27


def test_a_matrix_counts_as_one_byte_a_number(tmp_path: Path) -> None:
    path = fp8_checkpoint("llama", tmp_path / "fp8", "channel")
    plain = weight_bytes(load_config(saved_model("llama")), load_spec(path), torch.float32, "fp8")
    assert plain == weight_bytes(load_config(path), load_spec(path), torch.float32)


@pytest.mark.parametrize("dtype", [FP8, torch.int8], ids=str)
def test_rows_are_rounded_to_the_nearest(dtype: torch.dtype) -> None:
    weight = torch.randn(5, 300) * torch.tensor([1.0, 1e-20, 1e20, 0.0, 3.0])[:, None]
    weight[4, 0] = 1000.0
    quantized, scales = quantize_rows(weight, dtype)
    assert quantized.dtype == dtype
    error = (quantized.float() * scales[:, None] - weight).abs()
    largest = weight.abs().amax(1, keepdim=True)
    # Half of the distance of neighbours: int8 from the row's largest, fp8 of a number's own size.
    size = largest / 127 if dtype == torch.int8 else torch.maximum(weight.abs() / 8, largest / 448 / 2**9)
    assert bool((error <= 0.5001 * size).all())
    assert torch.equal(quantized[3].float(), torch.zeros(300))


def test_a_row_in_bf16_is_that_of_the_numbers_meant() -> None:
    weight, scales = quantize_rows(torch.randn(40, 64))
    bias = torch.nn.Parameter(torch.randn(40).bfloat16(), requires_grad=False)
    rows = torch.randn(3, 64).bfloat16()
    found = ScaledLinear(weight, scales, bias)(rows)
    wanted = rows.float() @ (weight.float() * scales[:, None]).T + bias.float()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=2**-6, atol=2**-4)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (quantization_config("block"), "strategy of quantization_config is 'block': .* not for blocks"),
        (quantization_config("group"), "strategy of quantization_config is 'group'"),
        (quantization_config(num_bits=4, type="int"), "weights of quantization_config are int4"),
        (quantization_config(symmetric=False), "symmetric False"),
        (quantization_config() | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        (quantization_config() | {"config_groups": {}}, "no config_groups"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "compressed-tensors' fp8 are read"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # transformers warns about what we are about to refuse
def test_what_is_not_read_is_refused(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    shutil.copytree(saved_model("llama"), tmp_path / "other")
    change_config(tmp_path / "other", config)
    with pytest.raises(UnsupportedModelError, match=told):
        load_spec(tmp_path / "other")


def test_scales_of_blocks_and_numbers_without_scales_are_refused(tmp_path: Path) -> None:
    path = fp8_checkpoint("llama", tmp_path / "fp8", "channel")
    tensors = load_file(path / SINGLE)
    blocks = tensors | {scale_of(MATRIX): torch.ones(2, 3)}
    save_file(blocks, path / SINGLE)
    with pytest.raises(UnsupportedModelError, match=rf"{scale_of(MATRIX)}' in .* has the shape \[2, 3\]; .*\[32, 1\]"):
        shard_of(path)
    for name in (MATRIX, "lm_head.weight"):
        bare = {key: value for key, value in tensors.items() if key != scale_of(name)}
        save_file(bare | {name: tensors[name].to(FP8)}, path / SINGLE)
        with pytest.raises(UnsupportedModelError, match=f"'{name}' in .* is fp8, which only matrices of its layers"):
            shard_of(path)


def test_a_checkpoint_is_not_made_something_else(tmp_path: Path) -> None:
    path = fp8_checkpoint("llama", tmp_path / "fp8", "channel")
    with pytest.raises(ConfigError, match="quantization is 'int8', but the checkpoint's weights are fp8; leave it out"):
        shard_of(path, "int8")


def test_a_matrix_may_be_left_as_it_is(tmp_path: Path) -> None:
    shard = shard_of(fp8_checkpoint("llama", tmp_path / "fp8", "channel"))
    left = shard.layers[1].get_submodule(IGNORED.removeprefix("model.layers.1."))
    assert type(left) is torch.nn.Linear
    weight: Tensor = left.weight
    assert weight.dtype == torch.float32
