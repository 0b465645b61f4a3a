"""Plans equal arithmetic that is written out."""

from __future__ import annotations

import argparse
from functools import cache

import pytest
import torch

from app.commands.operation.plan import add_arguments
from app.planning.cluster import Cluster, Hardware, spread
from app.planning.plan import BLOCK, GpuLayout, PlanRequest, check_ranges, chosen, layouts
from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.partition import GIB
from engine.simulated.profile import PROFILES
from tests.support.model_shapes import llama_70b

USABLE = 72 * GIB
SEVENTY = ModelSizes.of(llama_70b(), torch.bfloat16)
PAPER = PROFILES["70b-h100x4"]


@cache
def planned(gpus: int, stages: int | None = None, context: int = 1500) -> list[GpuLayout]:
    return layouts(SEVENTY, PlanRequest(gpus, USABLE, context, stages), Hardware(), PAPER)


def test_every_stage_fits_its_gpu_and_one_more_token_would_not() -> None:
    for found in planned(8):
        if found.why_not:
            continue
        taken = [one.weights + one.kv + SEVENTY.step_bytes(one.layers.is_last) for one in found.held]
        assert max(taken) <= USABLE
        assert sum(one.weights for one in found.held) == SEVENTY.bytes
        assert sum(one.kv for one in found.held) == found.kv_bytes
        tightest = max(zip(taken, found.held, strict=True), key=lambda pair: pair[0])
        assert tightest[0] + len(tightest[1].layers) * SEVENTY.kv_layer_bytes > USABLE
        of_one = (-(-1500 // BLOCK) + 1) * BLOCK * SEVENTY.kv_token_bytes
        assert found.sequences == found.replicas * (found.kv_bytes // of_one)


def test_a_model_that_is_too_large_is_reported_and_not_chosen() -> None:
    (one,) = planned(1)
    assert one.why_not.startswith("a stage would hold 131.")
    assert chosen([one]) is None
    best = chosen(planned(8))
    assert best is not None
    assert (best.replicas, best.stages) == (1, 8)


def test_the_layout_that_holds_most_sequences_is_chosen_fewest_stages_first() -> None:
    held = [GpuLayout(8 // n, n, sequences=most) for n, most in ((1, 9), (2, 12), (4, 12), (8, 10))]
    assert chosen(held) is held[1]
    assert chosen([GpuLayout(8, 1, sequences=9, why_not="too large"), held[3]]) is held[3]


def test_streams_are_divided_among_replicas_and_all_counted() -> None:
    cluster = Cluster(spread(PAPER, 2), 2, 3e-4, 5e-4, 1500)
    rates = {n: cluster.decoding(n).tokens_per_s for n in (2, 3, 4)}
    for gpus, expected in ((4, 2 * rates[4]), (6, 2 * rates[3] + rates[2])):
        [layout] = planned(gpus, 2)
        assert layout.replicas == gpus // 2
        assert {rate.streams: rate.plain for rate in layout.rates}[8] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--gpus 0", "--gpus is 0; it must be 1 to 4096"),
        ("--stages 3", "--stages is 3; it must divide --gpus, 8"),
        ("--context 0", "--context is 0"),
        ("--tokens-per-forward 0.5", "--tokens-per-forward is 0.5"),
        ("--tokens-per-forward 9 --nodes 4", "it must be 1 to 5"),
        ("--memory-tbs 0", "--memory-tbs is 0.0; it must be 1e-06 to 1e"),
        ("--launch-us -1", "--launch-us is -1"),
    ],
)
def test_a_flag_out_of_range_is_named(flags: str, says: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    command = f"--model none --gpus 8 --gpu-memory-gib 80 {flags}"
    with pytest.raises(ConfigError, match=says):
        check_ranges(parser.parse_args(command.split()))


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model allows 131072 tokens"):
        planned(8, context=1 << 20)
