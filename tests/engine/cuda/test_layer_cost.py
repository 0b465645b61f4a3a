"""A split by measured times takes the times of what will run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.target import layer_cost
from engine.target.layer_cost import layer_costs
from tests.engine.cuda.small_targets import small_model


def test_layers_of_an_executor_are_timed_as_it_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def unused(*_: Any) -> None:
        pytest.fail("the shard's own modules ran")

    monkeypatch.setattr(ModelShard, "run", unused)
    monkeypatch.setattr(layer_cost, "REPEATS", 1)
    monkeypatch.setattr(layer_cost, "MIX", ((None, 0.5), (3, 0.5)))
    config = small_model("llama").config
    spec = read_spec(config)
    found = layer_costs(config, spec, torch.float32, torch.device("cpu"), None, exact=True)
    assert len(found.layers) == spec.n_layers
    assert min(*found.layers, found.head) > 0
    assert found.embed == 0, "a part of the layers"
