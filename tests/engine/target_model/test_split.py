"""Which layers go where: every kind of split, the bytes of a stage, and costs that are measured once."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from engine.errors import ConfigError
from engine.model.loader import load_config, load_shard, load_spec
from engine.model.partition import GIB, ModelParts
from engine.model.ranges import split_layers
from engine.model.sizes import weight_bytes
from engine.target_model import layer_cost
from engine.target_model.layer_cost import layer_costs
from engine.target_model.loading import describe_target
from engine.target_model.options import TargetOptions
from engine.target_model.split import memory_of_stages, stage_ranges
from tests.support.tiny_models import saved_model

CPU = torch.device("cpu")


def options(path: Path, stages: int, split: str = "auto", **others: Any) -> TargetOptions:
    return TargetOptions(str(path), stages=stages, split=split, kv_bytes=1 << 20, block_size=16, **others)


def counts(asked: TargetOptions) -> list[int]:
    path = Path(asked.model)
    return [len(one) for one in stage_ranges(asked, path, describe_target(asked, path))]


def test_a_split_is_by_weights_even_or_as_given(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved_model("llama")  # a layer has 7744 parameters, the head 3136
    for stages, split, expected in (
        (2, "auto", [2, 2]),
        (3, "auto", [2, 1, 1]),
        (3, "even", [2, 1, 1]),
        (3, "1,1,2", [1, 1, 2]),
        (1, "auto", [4]),
    ):
        assert counts(options(path, stages, split)) == expected
    assert counts(options(tiny_checkpoint, 2)) == [3, 1]  # 320 tokens: the head outweighs a layer
    assert counts(options(tiny_checkpoint, 2, "even")) == [2, 2]
    for head, expected in ((0.0, [2, 2]), (2.0, [3, 1])):
        costs = ModelParts((1.0,) * 4, 0.1, head)
        monkeypatch.setattr("engine.target_model.split.layer_costs", lambda *_, costs=costs: costs)
        assert counts(options(path, 2, "measured")) == expected


@pytest.mark.parametrize(
    ("split", "stages", "message"),
    [
        ("2,3", 2, "layer_split is 2,3: 2 stages with 5 layers; .* 2 stages .* 4 layers"),
        ("2,2", 3, "layer_split is 2,2: 2 stages with 4 layers; .* 3 stages"),
        ("4,0", 2, "layer_split is '4,0'; it must be auto, even, measured"),
        ("most", 2, "layer_split is 'most'; it must be auto, even, measured"),
        ("auto", 5, "stages is 5; it must be 1 to 4"),
        ("even", 0, "stages is 0; it must be 1 to 4"),
    ],
)
def test_a_split_that_does_not_fit_the_model_is_refused(split: str, stages: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        counts(options(saved_model("llama"), stages, split))


def test_memory_moves_layers_and_is_refused_where_it_cannot() -> None:
    path = saved_model("llama")
    asked = options(path, 2)
    info = describe_target(asked, path)
    held = memory_of_stages(asked, path, info, stage_ranges(asked, path, info))
    assert sum(one.kv for one in held) == info.n_blocks * 16 * 2 * 2 * 8 * 4 * 4  # the whole budget, and no more
    exact = tuple(one.weights + one.kv for one in held)
    assert counts(replace(asked, stage_memory=exact)) == [2, 2]
    assert counts(replace(asked, stage_memory=(exact[0] - 1, GIB))) == [1, 3]
    assert counts(replace(asked, stage_memory=(GIB,), split="3,1")) == [3, 1]
    for split in ("auto", "3,1"):
        with pytest.raises(ConfigError, match="stage_memory_gib"):
            counts(replace(asked, stage_memory=exact[:1] if split == "3,1" else (exact[0] // 2,), split=split))
    for wrong in ((GIB, GIB, GIB), (0,)):
        with pytest.raises(ConfigError, match=r"stage_memory_gib is .*; it must be one number above 0, or one"):
            counts(replace(asked, stage_memory=wrong))


@pytest.mark.parametrize(
    ("family", "stages", "quantization"),
    [
        ("llama", 1, "fp8"),
        ("qwen2", 3, None),
        ("qwen3", 3, "fp8"),
        ("qwen3", 1, None),
        ("gemma3", 3, None),
        ("qwen3_moe", 3, None),
        ("mixtral", 1, "fp8"),
    ],
)
def test_bytes_of_a_stage_are_those_of_its_shard(family: str, stages: int, quantization: str | None) -> None:
    path = saved_model(family)
    config, spec = load_config(path), load_spec(path)
    parts = weight_bytes(config, spec, torch.bfloat16, quantization)
    for layers in split_layers(4, stages):
        shard = load_shard(path, layers, dtype=torch.bfloat16, device=CPU, n_positions=8, quantization=quantization)
        modules = [*shard.layers, *(one for one in (shard._embed, shard._norm, shard._head) if one is not None)]
        kept = {  # by storage: a tied head is counted once
            tensor.untyped_storage().data_ptr(): tensor.nbytes
            for module in modules
            for tensor in chain(module.parameters(), module.buffers())
            if tensor.ndim > 0  # Gemma's embedding scales by a number
        }
        assert sum(kept.values()) == parts.of(layers.first, layers.last)


@pytest.mark.parametrize(("family", "quantization"), [("llama", None), ("gemma3", "fp8")])
def test_costs_are_measured_once_per_config_dtype_and_quantization(
    family: str, quantization: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, spec = load_config(saved_model(family)), load_spec(saved_model(family))
    first = layer_costs(config, spec, torch.float32, CPU, quantization, str(tmp_path))
    assert len(first.layers) == 4
    assert min(*first.layers, first.embed, first.head) > 0
    for kind in set(spec.layer_types):  # layers of one type have one cost
        assert len({cost for cost, own in zip(first.layers, spec.layer_types, strict=True) if own == kind}) == 1
    [file] = tmp_path.iterdir()
    layer_costs(config, spec, torch.bfloat16, CPU, quantization, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    with monkeypatch.context() as patched:
        patched.setattr(layer_cost, "_measure", Mock(side_effect=AssertionError("measured again")))
        assert layer_costs(config, spec, torch.float32, CPU, quantization, str(tmp_path)) == first
    file.write_text("{}")  # an invalid file is measured again
    assert min(layer_costs(config, spec, torch.float32, CPU, quantization, str(tmp_path)).layers) > 0
    assert json.loads(file.read_text())
    assert layer_costs(config, spec, torch.float32, CPU, quantization, str(file)).head > 0  # not writable
