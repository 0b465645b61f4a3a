"""What is given and cannot act is refused by name; what asks for nothing is not."""

from __future__ import annotations

import argparse
import re
from typing import Any

import pytest

from app.commands.serve import config_from, flag
from app.config.serve import ServeConfig
from engine.errors import ConfigError

SIMULATED = {"simulate": "flat10"}
TWO = {"replicas": "2"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SIMULATED | {"layer_split": "even"}, "layer_split is even, but has no effect: simulate is set"),
        (SIMULATED | {"stage_memory_gib": "80"}, "stage_memory_gib is 80, but has no effect: simulate is set"),
        (SIMULATED | {"quantization": "int8"}, "quantization is int8, but has no effect: simulate is set"),
        ({"numerics": "exact"}, "numerics is exact, but has no effect: device is cpu"),
        ({"affinity": "prefix"}, "affinity is prefix, but has no effect: replicas is 1"),
        ({"affinity_slack": "100"}, "affinity_slack is 100, but has no effect: replicas is 1"),
        ({"failover": "1.0"}, "failover is 1.0, but has no effect: replicas is 1"),
        (TWO | {"affinity_slack": "0"}, "affinity_slack is 0, but has no effect: affinity is none"),
        ({"transport": "gloo"}, "transport is gloo, but has no effect: stages is 1"),
        ({"transport": "nccl", "device": "cuda", "stage_gpus": "1"}, "transport is nccl, .*: stages is 1"),
    ],
)
def test_what_cannot_act_is_refused_by_flag_and_by_key(given: dict[str, Any], said: str) -> None:
    by_flag = re.sub(r"\w+(?= is )", lambda field: flag(field[0]), said)
    with pytest.raises(ConfigError, match=by_flag):
        config_from(argparse.Namespace(**given))
    with pytest.raises(ValueError, match=said):
        ServeConfig(**given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        SIMULATED,
        SIMULATED | {"layer_split": "auto", "stage_memory_gib": None, "quantization": None, "numerics": "fast"},
        {"layer_split": "even", "stage_memory_gib": "80", "quantization": "int8"},
        {"affinity": "none", "transport": "auto"},
        {"transport": "tcp"},
        {"transport": "gloo", "stages": "2"},
        TWO | {"affinity": "prefix", "affinity_slack": "100", "failover": "0"},
        TWO | {"failover": "3"},
    ],
)
def test_what_acts_or_asks_for_nothing_is_taken(given: dict[str, Any]) -> None:
    assert ServeConfig(**given).model_fields_set == set(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replicas": "2", "max_replicas": "3"}, "replicas is 2, but max_replicas is 3"),
        ({"min_replicas": "4", "max_replicas": "3"}, "min_replicas is 4; it must be at most max_replicas"),
        ({"min_replicas": "2"}, "min_replicas is 2, but has no effect: max_replicas is not given"),
        ({"scale_down_delay": "9"}, "scale_down_delay is 9.0, but has no effect: max_replicas is not given"),
        ({"max_replicas": "1", "affinity": "prefix"}, "affinity is prefix, but has no effect: max_replicas is 1"),
    ],
)
def test_a_number_of_pipelines_and_bounds_of_it_exclude_each_other(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        ServeConfig(**given)


def test_bounds_are_those_of_a_fixed_number_unless_it_may_change() -> None:
    fixed, elastic = ServeConfig(replicas=3), ServeConfig(min_replicas=2, max_replicas=5, affinity="prefix")
    assert (fixed.least_pipelines, fixed.most_pipelines) == (3, 3)
    assert (elastic.least_pipelines, elastic.most_pipelines) == (2, 5)
