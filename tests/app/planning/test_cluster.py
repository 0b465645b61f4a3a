"""Limits that the scaling model keeps, whatever its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.planning.cluster import Cluster, split, spread, tokens_per_forward
from app.planning.exchanges import ExchangeCount, count_exchanges
from engine.model.spec import read_spec
from engine.simulated.profile import PROFILES, PipelineProfile
from tests.support.model_shapes import llama_70b

FOUR = Cluster(PROFILES["70b-h100x4"], 4)


def gain(streams: int, nodes: int) -> float:
    return FOUR.speculating(streams, nodes).tokens_per_s / FOUR.decoding(streams).tokens_per_s


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_flat10_reaches_the_ideal_where_micro_batches_divide(stages: int) -> None:
    for streams in (1, 2, 3, 4, 8, 16, 64):
        ideal = min(streams / (stages * 0.010), 2 / 0.010)
        found = Cluster(PROFILES["flat10"], stages).decoding(streams).steps_per_s
        assert found <= ideal * (1 + 1e-9)
        if streams % 2 == 0 or streams <= stages:
            assert found == pytest.approx(ideal)


def test_throughput_grows_with_streams_and_speculation_pays_only_for_few() -> None:
    cluster = Cluster(PROFILES["70b-h100x4"], 4, hop_s=3e-4, turn_s=5e-4)
    found = [cluster.decoding(n, 16) for n in (1, 2, 4, 8, 16, 32, 64)]
    for values in ([one.steps_per_s for one in found], [one.step_s for one in found]):
        assert values == sorted(values)
    assert 1.9 < gain(1, 128) < tokens_per_forward(128)
    assert gain(1024, 128) < 0.5
    assert FOUR.best_nodes(1) > FOUR.best_nodes(256)
    assert gain(1, 0) == tokens_per_forward(0) == pytest.approx(1)


def test_a_slow_link_is_the_bottleneck() -> None:
    slow = Cluster(PipelineProfile(0.017, flat_sequences=64, link_bytes_per_s=1e8), 4)
    row_bytes = 8192 * 2
    assert slow.interval_s(16, 64) == pytest.approx(16 * 65 * row_bytes / 1e8)
    assert slow.decoding(64, 64).steps_per_s == pytest.approx(1e8 / (65 * row_bytes))
    assert Cluster(slow.profile, 1).interval_s(16, 64) == pytest.approx(0.017)  # one stage has no link


def test_ranks_exchange_in_the_faster_of_two_ways() -> None:
    ranks = PipelineProfile(0.010, exchange_s=1e-3, gather_row_s=1e-4, scatter_row_s=1e-5)
    assert ranks.stage_seconds(1, 0) == pytest.approx(0.010 + 1.1e-3)
    assert ranks.stage_seconds(1, 63, prompt_rows=36) == pytest.approx(0.010 + 2e-3 + 100e-5)
    padded = replace(ranks, exchange_rows=16)
    assert padded.stage_seconds(1, 0) == padded.stage_seconds(1, 15) == pytest.approx(0.010 + 2e-3 + 16e-5)
    halves = spread(ranks, 2)
    assert 2 * halves.stage_seconds(1, 9) == pytest.approx(ranks.stage_seconds(1, 9))


def test_every_sum_and_the_head_are_counted() -> None:
    spec = read_spec(llama_70b())
    assert count_exchanges(spec, 80, 1, has_head=True) == ExchangeCount(0, 0)
    assert count_exchanges(spec, 1, 8, has_head=False) == ExchangeCount(2, 2 * 8192 * 4 * 7)
    assert count_exchanges(spec, 1, 8, has_head=False, by_rows=True) == ExchangeCount(4, 2 * 8192 * 6 * 7 / 8)
    head = count_exchanges(spec, 0, 8, has_head=True)
    assert head == ExchangeCount(2, 128256 * 4 * 7 / 8)


def test_a_split_is_even_and_complete() -> None:
    assert split(9, 4) == [3, 2, 2, 2]
    assert split(8, 8) == [1] * 8
