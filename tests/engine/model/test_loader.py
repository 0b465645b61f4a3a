"""Checkpoints: every supported layout gives Hugging Face's text, and everything else is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from engine.errors import ConfigError, UnsupportedModelError
from engine.model.checkpoint_files import INDEX, SINGLE
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import LayerRange
from engine.model.spec import read_spec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.info import plan_cache
from engine.target_model.local import LocalTarget
from engine.target_model.numerics import resolve_dtype
from engine.target_model.options import TargetOptions
from tests.support.engines import complete_all, make_engine
from tests.support.fp8_checkpoints import quantization_config
from tests.support.tiny_models import random_prompts, reference_tokens, saved_model, tiny_model

CPU = torch.device("cpu")
N_TOKENS = 10


@pytest.fixture
def editable(tmp_path: Path) -> Callable[..., Path]:
    """``editable(family, **changes)``: a copy of a checkpoint, its config changed; None removes an entry."""

    def copy(family: str, **changes: Any) -> Path:
        path = tmp_path / family
        shutil.copytree(saved_model(family), path)
        edit(path / "config.json", **changes)
        return path

    return copy


def edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def load(path: Path, stages: int) -> LocalTarget:
    return LocalTarget.load(TargetOptions(str(path), stages=stages, kv_bytes=1 << 20, block_size=16), path)


def jobs(texts: list[list[int]]) -> list[Request]:
    return [Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,)), "pld") for text in texts]


@pytest.mark.parametrize(
    ("family", "size", "stages"),
    [("llama", "20KB", 3), ("qwen3", "1GB", 3), ("qwen3", "20KB", 1), ("gemma3", "20KB", 3)],  # untied, tied, tied
)
def test_a_checkpoint_in_any_number_of_files_and_stages_gives_the_same_text(
    family: str, size: str, stages: int, tmp_path: Path
) -> None:
    tiny_model(family).save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / INDEX).exists() == (size == "20KB")
    texts = random_prompts(2)
    done = complete_all(make_engine(load(tmp_path, stages)), jobs(texts))
    expected = [reference_tokens(family, tuple(text), N_TOKENS) for text in texts]
    assert [completion.token_ids for completion in done] == expected


ORIGINAL = {"original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | ORIGINAL,
        {"rope_type": "yarn", "factor": 4.0} | ORIGINAL,
    ],
)
def test_static_rope_scaling_gives_the_text_of_generate(rope: dict[str, Any], tmp_path: Path) -> None:
    config = LlamaConfig(**tiny_model("llama").config.to_dict() | {"rope_parameters": {"rope_theta": 10000.0, **rope}})
    torch.manual_seed(3)
    scaled = LlamaForCausalLM(config).eval()
    scaled.save_pretrained(tmp_path)
    texts = random_prompts(2)
    done = complete_all(make_engine(load(tmp_path, 2)), jobs(texts))
    for text, completion in zip(texts, done, strict=True):
        ids = torch.tensor([text])
        out = scaled.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=N_TOKENS, do_sample=False)
        assert completion.token_ids == out[0, len(text) :].tolist()


LONGROPE = {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4, "factor": 2.0}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"model_type": "gpt2"}, "'gpt2'"),
        ("llama", {"model_type": "nonsense"}, "nonsense"),
        ("llama", {"model_type": None, "architectures": None}, "model_type"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic'"),
        ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4} | LONGROPE}, "'longrope'"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        *(
            ("llama", {"quantization_config": config}, message)
            for config, message in (
                (quantization_config(symmetric=False), "symmetric is False"),
                (quantization_config() | {"config_groups": {}}, "config_groups is {}"),
                ({"quant_method": "exl3"}, "quantization_config.quant_method is 'exl3', .* AWQ, GPTQ .* would do"),
                ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "load_in_8bit"),
            )
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")  # transformers warns about what is about to be refused
def test_an_unsupported_config_is_refused_by_name(
    family: str, changes: dict[str, Any], message: str, editable: Callable[..., Path]
) -> None:
    path = editable(family, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        load_spec(path)
    with pytest.raises(UnsupportedModelError, match=message):
        load_shard(path, LayerRange(0, 4, 4), dtype=torch.float32, device=CPU, n_positions=8)


def test_missing_files_and_tensors_are_named(editable: Callable[..., Path], tmp_path: Path) -> None:
    path = editable("llama")
    weights = load_file(path / SINGLE)
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, path / SINGLE)
    whole: dict[str, Any] = {"dtype": torch.float32, "device": CPU, "n_positions": 8}
    with pytest.raises(UnsupportedModelError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        load_shard(path, LayerRange(0, 4, 4), **whole)
    load_shard(path, LayerRange(0, 2, 4), **whole)  # the missing tensor belongs to another stage
    (path / SINGLE).rename(path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="safetensors"):
        load_spec(path)
    (path / "config.json").unlink()
    with pytest.raises(UnsupportedModelError, match="config"):
        load_spec(path)
    tiny_model("llama").save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    lost = json.loads((tmp_path / "parts" / INDEX).read_text())["weight_map"]["model.norm.weight"]
    (tmp_path / "parts" / lost).unlink()
    with pytest.raises(UnsupportedModelError, match=lost):
        load_shard(tmp_path / "parts", LayerRange(0, 4, 4), **whole)


def test_eos_ids_come_from_the_generation_config_first(editable: Callable[..., Path]) -> None:
    path = editable("llama", eos_token_id=9)
    assert load_spec(path).eos_ids == (2,)
    edit(path / "generation_config.json", eos_token_id=[5, 7])
    assert load_spec(path).eos_ids == (5, 7)
    edit(path / "generation_config.json", eos_token_id=None)
    assert load_spec(path).eos_ids == (9,)
    (path / "generation_config.json").unlink()
    assert load_spec(path).eos_ids == (9,)
    edit(path / "config.json", eos_token_id=[3, 4])
    assert load_spec(path).eos_ids == (3, 4)
    edit(path / "config.json", eos_token_id=None)
    assert load_spec(path).eos_ids in ((), (2,))  # (2,) is what Llama's config assumes


def test_a_model_runs_in_the_requested_dtype() -> None:
    spec = read_spec(tiny_model("gemma3").config)
    assert resolve_dtype(None, spec, "cpu") is torch.float32
    assert resolve_dtype(None, replace(spec, dtype="bfloat16"), "cuda") is torch.bfloat16
    with pytest.raises(ConfigError, match="int8"):
        resolve_dtype("int8", spec, "cpu")
    for name in ("float32", "bfloat16", "float16"):
        dtype = resolve_dtype(name, spec, "cuda")
        shard = load_shard(saved_model("gemma3"), LayerRange(0, 4, 4), dtype=dtype, device=CPU, n_positions=8)
        assert shard.dtype is dtype
        assert {weight.dtype for layer in shard.layers for weight in layer.parameters()} == {dtype}
        expected = tiny_model("gemma3").model.embed_tokens(torch.tensor([[5, 6]]))
        assert torch.allclose(shard.embed(torch.tensor([5, 6])).float(), expected, rtol=0.02, atol=1e-3)


def test_threads_that_load_at_once_get_their_dtypes_and_leave_torchs_defaults() -> None:
    def load_one(number: int) -> set[tuple[str, torch.dtype]]:
        dtype = (torch.float32, torch.bfloat16)[number % 2]
        shard = load_shard(saved_model("llama"), LayerRange(0, 4, 4), dtype=dtype, device=CPU, n_positions=8)
        return {(weight.device.type, weight.dtype) for layer in shard.layers for weight in layer.parameters()}

    with ThreadPoolExecutor(8) as threads:
        loaded = list(threads.map(load_one, range(24)))
    assert loaded == [{("cpu", torch.float32)}, {("cpu", torch.bfloat16)}] * 12
    ours = torch.nn.Linear(1, 1).weight
    assert (ours.device, ours.dtype) == (CPU, torch.float32)


def test_a_cache_that_is_too_small_is_refused() -> None:
    spec = read_spec(tiny_model("llama").config)
    per_block = 4 * 2 * 16 * 2 * 8 * 4  # layers, keys and values, tokens, heads, dimensions, bytes
    options = TargetOptions("m", kv_bytes=10 * per_block, block_size=16)
    info = plan_cache(spec, options, torch.float32.itemsize)
    assert (info.n_blocks, info.max_model_len) == (10, 9 * 16)
    assert plan_cache(spec, options, torch.bfloat16.itemsize).n_blocks == 20
    for wrong in (TargetOptions("m", kv_bytes=3 * per_block, block_size=16), TargetOptions("m", max_model_len=513)):
        with pytest.raises(ConfigError):
            plan_cache(spec, wrong, torch.float32.itemsize)
