"""Plans equal arithmetic that is written out."""

from __future__ import annotations

import argparse
from functools import cache

import pytest
import torch

from app.commands.operation.plan import add_arguments
from app.planning.cluster import Cluster, Hardware, spread
from app.planning.layouts import BLOCK, GpuLayout, PlanRequest, Rate, busiest, fastest, layouts
from app.planning.plan import check_ranges
from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.build import empty_model
from engine.model.partition import GIB
from engine.model.share import RankShare
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
    assert fastest([one]) is busiest([one]) is None
    assert [found.stages for found in planned(8) if not found.why_not] == [2, 4, 8]


def test_one_layout_is_named_for_one_stream_and_one_for_many() -> None:
    def layout(stages: int, one: float, many: float, sequences: int = 600) -> GpuLayout:
        return GpuLayout(1, stages, sequences=sequences, rates=[Rate(1, 5, one, 8), Rate(512, many, 10, 8)])

    found = [layout(1, 90, 500), layout(2, 80, 900), layout(4, 70, 900, 700), GpuLayout(8, 1, why_not="too large")]
    assert fastest(found) is found[0]
    assert busiest(found) is found[2]  # of equal rates, the one with more sequences


def test_ranks_divide_a_machine_and_the_model() -> None:
    def shapes(gpus: int, **asked: int) -> set[tuple[int, int, int]]:
        request = PlanRequest(gpus, USABLE, 1500, **asked)
        return {(one.replicas, one.stages, one.tensor_parallel) for one in layouts(SEVENTY, request, Hardware(), None)}

    pipelines = {(4, 1, 1), (2, 2, 1), (1, 4, 1)}
    assert shapes(4) == pipelines | {(2, 1, 2), (1, 2, 2), (1, 1, 4)}
    assert shapes(4, node_gpus=2) == pipelines | {(2, 1, 2), (1, 2, 2)}
    assert shapes(8, tensor_parallel=4) == {(2, 1, 4), (1, 2, 4)}
    assert {one.tensor_parallel for one in planned(8)} == {1}  # a profile holds for one number of ranks
    with pytest.raises(ConfigError, match="tensor_parallel is 3; this model has 64 query heads"):
        shapes(6, tensor_parallel=3, node_gpus=6)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_weights_of_a_rank_are_the_parts_that_it_loads(size: int) -> None:
    config = llama_70b()
    config.num_hidden_layers = 2
    share, sizes = RankShare(size - 1, size), ModelSizes.of(config, torch.bfloat16)
    total = 0
    for name, weight in empty_model(config).named_parameters():
        part = share.part(name, weight.shape, sizes.spec)
        total += 2 * (weight if part is None else part.of(weight)).numel()
    assert sizes.of_rank(size).bytes == total


def test_the_cache_of_a_rank_has_its_key_heads_and_repeats_one_where_ranks_exceed_them() -> None:
    for n_kv_heads, repeated in ((8, 1), (2, 2)):
        config = llama_70b()
        config.num_key_value_heads = n_kv_heads
        sizes = ModelSizes.of(config, torch.bfloat16)
        [one] = layouts(sizes, PlanRequest(4, USABLE, 1500, tensor_parallel=4), Hardware(), None)
        [held] = one.held
        assert held.weights + held.kv + sizes.of_rank(4).step_bytes(True) <= USABLE
        assert one.kv_bytes == 4 * held.kv
        of_one = (-(-1500 // BLOCK) + 1) * BLOCK * sizes.kv_token_bytes * repeated
        assert one.sequences == one.kv_bytes // of_one


def test_a_step_of_ranks_reads_a_share_and_exchanges_sums() -> None:
    speeds = Hardware(3e12, 8e14, kernel_s=2e-6, exchange_s=1e-5, exchange_bytes_per_s=4.5e11)
    [one] = layouts(SEVENTY, PlanRequest(4, USABLE, 1500, tensor_parallel=4), speeds, None)
    assert one.profile is not None
    embedding = 2 * 128256 * 8192
    norms = 2 * 161 * 8192  # whole on every rank
    read_s = ((SEVENTY.bytes - embedding - norms) / 4 + norms) / 3e12
    assert one.profile.base_s == pytest.approx(read_s + (80 * 14 + 10) * 2e-6)
    assert one.profile.exchange_s == pytest.approx((80 * 2 + 2) * 1e-5)
    head = 128256 * 4 * 3 / 4
    assert one.profile.gather_row_s == pytest.approx((80 * 2 * 8192 * 4 * 3 + head) / 4.5e11)
    assert one.profile.scatter_row_s == pytest.approx((80 * 2 * 8192 * 3 / 4 * (4 + 2) + head) / 4.5e11)
    assert one.profile.context_s == pytest.approx(SEVENTY.kv_token_bytes / 4 / 3e12)
    step_s = one.profile.base_s + one.profile.exchange_s + 16 * one.profile.gather_row_s + 1500 * one.profile.context_s
    assert 1 / one.rates[0].plain == pytest.approx(step_s + speeds.hop_s + speeds.turn_s)


def test_a_drafter_takes_time_in_steps_with_drafts_alone() -> None:
    request = PlanRequest(8, USABLE, 1500, 8, tokens_per_forward=4.0, nodes=16)
    [without], [drafting] = (layouts(SEVENTY, request, Hardware(draft_s=s), PAPER) for s in (0.0, 0.006))
    assert drafting.rates[0].plain == without.rates[0].plain
    assert 4 / drafting.rates[0].drafted - 4 / without.rates[0].drafted == pytest.approx(0.006)


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
        ("--tensor-parallel 3", "--tensor-parallel is 3; it must divide --node-gpus, 8"),
        ("--tensor-parallel 4 --stages 4", "and --gpus, 8, by --stages"),
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
