"""Timed steps of a mixture of experts read as many experts as the rows of different texts do."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

import pytest
import torch
from transformers import Qwen3MoeConfig

from engine.model.build import random_model
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.step import Step
from engine.target_model import layer_cost
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from engine.target_model.step_timing import measurement

N_EXPERTS, PER_TOKEN, N_LAYERS = 64, 4, 2
CPU = torch.device("cpu")


@cache
def random_qwen() -> Any:
    config = Qwen3MoeConfig(
        vocab_size=2003,
        hidden_size=256,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=N_EXPERTS,
        num_experts_per_tok=PER_TOKEN,
        moe_intermediate_size=16,
        max_position_embeddings=1024,
    )
    return random_model(config, torch.float32, CPU, None)


class ReadExperts:
    """Number of experts that the last forward pass has read in the last layer of a model."""

    def __init__(self, model: Any) -> None:
        self.n = 0
        model.model.layers[-1].mlp.gate.register_forward_hook(self._count)

    def _count(self, _module: Any, _inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
        self.n = len(set(output[2].flatten().tolist()))


def expected(n_rows: int) -> float:
    """Experts that so many rows choose if every expert is equally likely."""
    return N_EXPERTS * (1 - (1 - PER_TOKEN / N_EXPERTS) ** n_rows)


def n_rows(step: Step) -> int:
    return sum(len(work.tokens) + (0 if work.tree is None else len(work.tree)) for work in step.work)


def test_steps_for_auto_read_the_expected_experts() -> None:
    model = random_qwen()
    spec = read_spec(model.config, ())
    shard, reads = ModelShard(model, spec, LayerRange(0, N_LAYERS, N_LAYERS), 1024), ReadExperts(model)
    target = LocalTarget.of_shards(TargetInfo(spec, 1300, 16, 500), [shard])
    wanted = {(1, 1), (1, 5), (1, 17), (1, 65), (16, 80), (64, 512)}  # sequences and rows
    seen, run = {shape: list[int]() for shape in wanted}, measurement(target.info)
    step = next(run)
    with contextlib.suppress(StopIteration):
        while True:
            shape = len(step.work), n_rows(step)
            is_decoding = bool(step.work) and step.work[0].n_cached > 0
            if not is_decoding:
                target.step(step)
            elif len(seen.get(shape, (0, 0))) < 2:
                target.step(step)
                seen[shape].append(reads.n)
            step = run.send(0.01)
    for (_, rows), counts in seen.items():
        assert sum(counts) / 2 == pytest.approx(expected(rows), rel=0.2)


def test_a_layer_is_measured_with_the_expected_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    config, reads, seen = random_qwen().config, list[ReadExperts](), list[tuple[int, int]]()
    take = layer_cost._seconds

    def build(*arguments: Any) -> Any:
        model = random_model(*arguments)
        reads.append(ReadExperts(model))
        return model

    def run(*arguments: Any) -> tuple[float, float, float]:
        seconds = take(*arguments)
        seen.append((n_rows(arguments[-1]), reads[-1].n))
        return seconds

    monkeypatch.setattr(layer_cost, "random_model", build)
    monkeypatch.setattr(layer_cost, "_seconds", run)
    layer_cost.layer_costs(config, read_spec(config, ()), torch.float32, CPU, None)
    assert {rows for rows, _ in seen} == {1, 65, 256}
    assert [n for _, n in seen] == pytest.approx([expected(rows) for rows, _ in seen], rel=0.1)
