"""Limits that the scaling model must keep, whatever its numbers."""

from __future__ import annotations

import pytest

from app.planning.cluster import Cluster, hop_bytes, split, tokens_per_forward
from engine.simulated.profile import PROFILES, PipelineProfile

FLAT10 = PROFILES["flat10"]


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("streams", [1, 2, 3, 4, 8, 16, 64])
def test_flat10_reaches_the_ideal_where_micro_batches_divide(stages: int, streams: int) -> None:
    ideal = min(streams / (stages * 0.010), 2 / 0.010)
    found = Cluster(FLAT10, stages).decoding(streams).steps_per_s
    assert found <= ideal * (1 + 1e-9)
    if streams % 2 == 0 or streams <= stages:
        assert found == pytest.approx(ideal)


@pytest.mark.parametrize("profile", ["70b-h100x2", "70b-h100x4", "70b-h100x8"])
def test_one_stream_gets_what_the_paper_measured_at_any_number_of_stages(profile: str) -> None:
    cluster = Cluster(PROFILES[profile], PROFILES[profile].stages)
    assert cluster.decoding(1).tokens_per_s == pytest.approx(14.7)
    assert cluster.decoding(1, 128, 2.52).tokens_per_s == pytest.approx(28.9)


def test_throughput_grows_with_stages_once_there_are_enough_streams_and_latency_does_not() -> None:
    two, eight = Cluster(PROFILES["70b-h100x2"], 2), Cluster(PROFILES["70b-h100x8"], 8)
    assert eight.decoding(1).step_s == pytest.approx(two.decoding(1).step_s)
    assert eight.decoding(512).steps_per_s == pytest.approx(4 * two.decoding(512).steps_per_s, rel=0.01)


def test_more_streams_never_get_less_together_nor_does_one_of_them_get_more() -> None:
    cluster = Cluster(PROFILES["70b-h100x4"], 4, hop_s=3e-4, turn_s=5e-4)
    found = [cluster.decoding(n, 16) for n in (1, 2, 4, 8, 16, 32, 64)]
    rates = [one.steps_per_s for one in found]
    assert rates == sorted(rates)
    steps = [one.step_s for one in found]
    assert steps == sorted(steps)


def test_speculation_pays_for_one_stream_and_no_longer_for_a_full_batch() -> None:
    cluster = Cluster(PROFILES["70b-h100x4"], 4)
    assert 1.9 < cluster.gain(1, 128) < tokens_per_forward(128)
    assert cluster.gain(1024, 128) < 0.5
    assert cluster.best_nodes(1) > cluster.best_nodes(256)
    assert cluster.gain(1, 0) == 1.0


def test_a_slow_wire_becomes_the_bottleneck_and_a_fast_one_costs_nothing() -> None:
    def cluster(bytes_per_s: float) -> Cluster:
        return Cluster(PipelineProfile(0.017, flat_sequences=64, link_bytes_per_s=bytes_per_s), 4)

    slow, fast, none = cluster(1e8), cluster(1e13), cluster(0.0)
    assert slow.interval_s(16, 64) == pytest.approx(hop_bytes(16 * 65) / 1e8)
    assert slow.decoding(64, 64).steps_per_s == pytest.approx(1e8 / hop_bytes(65))
    assert fast.decoding(64, 64).steps_per_s == pytest.approx(none.decoding(64, 64).steps_per_s, rel=1e-3)
    assert Cluster(slow.profile, 1).interval_s(16, 64) == pytest.approx(0.017)  # no hop, no wire


def test_prompts_take_time_from_decoding_and_none_take_none() -> None:
    cluster = Cluster(PROFILES["70b-h100x4"], 4)
    found = cluster.decoding(64)
    endless = cluster.with_prompts(found, 0, 1_000_000)
    assert endless == pytest.approx(found.tokens_per_s, rel=0.01)
    rates = [cluster.with_prompts(found, prompt, 200) for prompt in (0, 100, 1000, 4000)]
    assert rates == sorted(rates, reverse=True)
    assert cluster.stall_s(512) == pytest.approx(4 * 512 * cluster.profile.prompt_row_s)


def test_tokens_per_forward_fit_what_was_measured() -> None:
    for nodes, measured in ((0, 1.0), (16, 1.90), (64, 2.24), (128, 2.52)):
        assert tokens_per_forward(nodes) == pytest.approx(measured, rel=0.03)


def test_a_split_is_even_and_complete() -> None:
    assert split(9, 4) == [3, 2, 2, 2]
    assert split(8, 8) == [1] * 8
