"""Which layers go where: every way to ask for a split, what a stage really holds, and costs that are measured once."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ConfigError
from engine.model.loader import load_config, load_shard, load_spec
from engine.model.partition import GIB, ModelParts
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.sizes import weight_bytes
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target import layer_cost
from engine.target.layer_cost import layer_costs
from engine.target.loading import describe_target, memory_of_stages, stage_ranges
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from tests.support.engines import complete_all, make_engine
from tests.support.tiny_models import random_prompts, reference_tokens, saved_model

CPU = torch.device("cpu")
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")


def options(path: Path, stages: int, split: str = "auto", **others: Any) -> TargetOptions:
    return TargetOptions(str(path), stages=stages, split=split, kv_bytes=1 << 20, block_size=16, **others)


def counts(wanted: TargetOptions) -> list[int]:
    path = Path(wanted.model)
    return [len(one) for one in stage_ranges(wanted, path, describe_target(wanted, path))]


def test_a_split_is_by_weights_even_or_as_given() -> None:
    path = saved_model("llama")  # a layer has 7744 parameters, the head 3136
    assert counts(options(path, 2)) == [2, 2]
    assert counts(options(path, 3)) == [2, 1, 1]
    assert counts(options(path, 3, "even")) == [2, 1, 1]
    assert counts(options(path, 3, "1,1,2")) == [1, 1, 2]
    assert counts(options(path, 1)) == [4]


def test_a_large_vocabulary_takes_layers_from_the_last_stage(tiny_checkpoint: Path) -> None:
    assert counts(options(tiny_checkpoint, 2)) == [3, 1]  # 320 tokens: the head outweighs a layer
    assert counts(options(tiny_checkpoint, 2, "even")) == [2, 2]


@pytest.mark.parametrize(
    ("split", "stages", "told"),
    [
        ("2,3", 2, "layer_split is 2,3: 2 stages with 5 layers; .* 2 stages .* 4 layers"),
        ("2,2", 3, "layer_split is 2,2: 2 stages with 4 layers; .* 3 stages"),
        ("4,0", 2, "layer_split is '4,0'; it must be auto, even, measured"),
        ("most", 2, "layer_split is 'most'; it must be auto, even, measured"),
        ("auto", 5, "stages is 5; it must be 1 to 4"),
        ("even", 0, "stages is 0; it must be 1 to 4"),
    ],
)
def test_a_split_that_does_not_fit_the_model_is_refused(split: str, stages: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        counts(options(saved_model("llama"), stages, split))


def test_memory_moves_layers_and_is_refused_where_it_cannot() -> None:
    path = saved_model("llama")
    wanted = options(path, 2)
    info = describe_target(wanted, path)
    held = memory_of_stages(wanted, path, info, stage_ranges(wanted, path, info))
    assert sum(one.kv for one in held) == info.n_blocks * 16 * 2 * 2 * 8 * 4 * 4  # the whole budget, and no more
    exact = tuple(one.weights + one.kv for one in held)
    assert counts(replace(wanted, stage_memory=exact)) == [2, 2]
    assert counts(replace(wanted, stage_memory=(exact[0] - 1, GIB))) == [1, 3]
    assert counts(replace(wanted, stage_memory=(GIB,), split="3,1")) == [3, 1]
    for split in ("auto", "3,1"):
        with pytest.raises(ConfigError, match="stage_memory_gib"):
            counts(replace(wanted, stage_memory=exact[:1] if split == "3,1" else (exact[0] // 2,), split=split))
    for wrong in ((GIB, GIB, GIB), (0,)):
        with pytest.raises(ConfigError, match=r"stage_memory_gib is .*; it must be one number above 0, or one"):
            counts(replace(wanted, stage_memory=wrong))


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stages", [1, 3])
def test_bytes_of_a_stage_are_those_that_its_shard_has(family: str, stages: int, quantization: str | None) -> None:
    path = saved_model(family)
    config, spec = load_config(path), load_spec(path)
    parts = weight_bytes(config, spec, torch.bfloat16, quantization)
    for layers in split_layers(4, stages):
        shard = load_shard(path, layers, dtype=torch.bfloat16, device=CPU, n_positions=8, quantization=quantization)
        assert held_bytes(shard) == parts.of(layers.first, layers.last)


def held_bytes(shard: ModelShard) -> int:
    """Bytes of the storages of a shard; a tied head is counted once."""
    modules = [*shard.layers, *(one for one in (shard._embed, shard._norm, shard._head) if one is not None)]
    kept = {
        tensor.untyped_storage().data_ptr(): tensor.nbytes
        for module in modules
        for tensor in chain(module.parameters(), module.buffers())
        if tensor.ndim > 0  # Gemma's embedding scales by a number
    }
    return sum(kept.values())


@pytest.mark.parametrize("split", ["1,1,2", "2,1,1", "1,2,1", "measured"])
def test_the_text_does_not_depend_on_the_split(
    split: str,
) -> None:
    path = saved_model("gemma3")  # two types of layers
    target = LocalTarget.load(options(path, 3, split), path)
    texts = random_prompts(2)
    done = complete_all(
        make_engine(target), [Request(text, SamplingParams(max_tokens=10, stop_ids=(2,)), "pld") for text in texts]
    )
    assert [one.token_ids for one in done] == [reference_tokens("gemma3", tuple(text), 10) for text in texts]


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_costs_are_measured_once_per_config_dtype_and_quantisation(
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

    def never(*_: Any) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patched:
        patched.setattr(layer_cost, "_measure", never)
        assert layer_costs(config, spec, torch.float32, CPU, quantization, str(tmp_path)) == first
    file.write_text("{}")  # what makes no sense is measured again
    assert min(layer_costs(config, spec, torch.float32, CPU, quantization, str(tmp_path)).layers) > 0
    assert json.loads(file.read_text())


def test_what_was_measured_leaves_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[ModelShard]] = []
    one_layer = layer_cost._one_layer

    def remembered(*arguments: Any) -> ModelShard:
        shard = one_layer(*arguments)
        made.append(weakref.ref(shard))
        return shard

    monkeypatch.setattr(layer_cost, "_one_layer", remembered)
    gc.disable()  # it would come at some time
    try:
        layer_costs(load_config(saved_model("gemma3")), load_spec(saved_model("gemma3")), torch.float32, CPU, None)
        left = [shard() is not None for shard in made]
    finally:
        gc.enable()
    assert left == [False, False]


def test_measured_costs_decide_where_layers_go(monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved_model("llama")
    for head, wanted in ((0.0, [2, 2]), (2.0, [3, 1])):
        costs = ModelParts((1.0,) * 4, 0.1, head)
        monkeypatch.setattr("engine.target.split.layer_costs", lambda *_, costs=costs: costs)
        assert counts(options(path, 2, "measured")) == wanted


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    config, spec = load_config(saved_model("llama")), load_spec(saved_model("llama"))
    assert layer_costs(config, spec, torch.float32, CPU, None, str(tmp_path / "file")).head > 0
