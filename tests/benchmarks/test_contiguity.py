"""Runs of blocks last under load, and the benchmark that says so runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.demo.paths import DEMO_TARGET
from benchmarks.contiguity.load import Load
from benchmarks.contiguity.replay import measure
from engine.target.info import TargetInfo
from engine.target.loading import describe_target, load_layers, whole_range
from engine.target.options import TargetOptions

OPTIONS = TargetOptions(str(DEMO_TARGET))


def info(n_blocks: int) -> TargetInfo:
    return replace(describe_target(OPTIONS, DEMO_TARGET), n_blocks=n_blocks)


@pytest.mark.parametrize("sharing", [False, True])
def test_in_a_cache_that_is_nearly_full_few_sequences_are_scattered(sharing: bool) -> None:
    load = Load(info(1024), 0.85, sharing)
    load.warm_up(300)
    for _ in load.steps(200):
        load.scheduler.blocks.check_integrity()
    figures = {name: value for name, value in load.counts.figures().items() if value is not None}
    assert figures["occupancy"] > 0.8
    assert figures["scattered"] < 0.1  # 0.9 without moves
    assert figures["moved_per_block_read"] < 0.05
    assert (figures["cached"] > 0.2) == sharing


def test_what_a_loaded_cache_costs_is_measured() -> None:
    of = info(256)
    shard = load_layers(OPTIONS, DEMO_TARGET, whole_range(of.spec), of)
    figures = measure(shard, of, 0.9, False, 60, 4)
    assert figures["every_ratio"] is not None
    assert figures["every_ratio"] > 0
