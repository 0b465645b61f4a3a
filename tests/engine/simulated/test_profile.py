"""How long simulated stages take, and what profiles of one's own may say."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import ConfigError
from engine.simulated.profile import PROFILES, PipelineProfile, profile_of
from engine.step import Work
from engine.tree import TokenTree


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_the_70b_profiles_take_what_the_paper_measured(stages: int) -> None:
    profile = PROFILES[f"70b-h100x{stages}"]
    assert profile.stages == stages
    assert stages * profile.stage_seconds(1, 0) == pytest.approx(1 / 14.7)
    assert 2.52 / (stages * profile.stage_seconds(1, 128)) == pytest.approx(28.9)


@pytest.mark.parametrize(("sequences", "milliseconds"), [(0, 10), (1, 10), (2, 10), (3, 15), (16, 80)])
def test_flat10_takes_ten_milliseconds_for_two_sequences_and_proportionally_more_above(
    sequences: int, milliseconds: float
) -> None:
    profile = PROFILES["flat10"]
    assert profile.stage_seconds(sequences, 0) == pytest.approx(milliseconds / 1e3)
    assert profile.stage_seconds(sequences, 64 * sequences) == pytest.approx(milliseconds / 1e3)


def test_rows_beyond_the_flat_ones_prompts_nodes_and_verification_add_their_time() -> None:
    profile = PipelineProfile(0.010, flat_sequences=4, flat_rows=100, node_s=1e-5, prompt_row_s=1e-4, verify_s=0.002)
    assert profile.stage_seconds(1, 50) == pytest.approx(0.010 + 50e-5)
    assert profile.stage_seconds(2, 198) == pytest.approx(0.020 + 198e-5)
    assert profile.stage_seconds(0, 0, prompt_rows=30, is_last=True) == pytest.approx(0.010 + 0.003 + 0.002)


def test_a_steps_trees_are_sequences_and_its_chunks_are_prompt_rows() -> None:
    profile = PipelineProfile(0.010, flat_sequences=1, node_s=1e-3, prompt_row_s=1e-4)
    works = [
        Work(0, 9, [1], TokenTree([5, 6, 7], [-1, 0, 0])),
        Work(1, 0, list(range(20))),
        Work(2, 4, [1], TokenTree([], [])),
    ]
    assert profile.work_seconds(works, is_last=False) == pytest.approx(0.020 + 3e-3 + 20e-4)


def test_tokens_that_attention_reads_add_their_time_but_those_of_a_prompt_do_not() -> None:
    profile = PipelineProfile(0.010, flat_sequences=4, context_s=1e-6)
    works = [Work(0, 900, [1], TokenTree([5], [-1])), Work(1, 100, [1], TokenTree([], [])), Work(2, 512, [3] * 64)]
    assert profile.work_seconds(works, is_last=True) == pytest.approx(0.010 + 1000e-6)


def test_an_8b_on_an_h200_reads_its_weights_until_its_rows_take_longer() -> None:
    profile = PROFILES["8b-h200"]
    assert profile.stage_seconds(1, 0) == pytest.approx(4.0e-3, rel=0.01)
    assert profile.stage_seconds(1, 64) < 1.1 * profile.stage_seconds(1, 0)
    assert profile.stage_seconds(400, 0) == pytest.approx(400 * 16e9 / 790e12, rel=0.01)


def test_a_wire_is_busy_as_long_as_its_bytes_take() -> None:
    profile = PipelineProfile(0.010, link_bytes_per_s=1.25e9, row_bytes=16_384)
    assert profile.wire_seconds(65) == pytest.approx(65 * 16_384 / 1.25e9)
    assert PipelineProfile(0.010).wire_seconds(65) == 0.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"base_s": 0.01, "bases": 1}, "no field 'bases'; it has base_s, stages"),
        ({}, "lacks base_s"),
        ({"base_s": "fast"}, "base_s is 'fast'; it must be a number"),
        ({"base_s": True}, "base_s is True"),
        ({"base_s": 0.01, "stages": 2.5}, "stages is 2.5; it must be a whole number"),
        ({"base_s": 0.01, "stages": 0}, "stages is 0; it must be at least 1"),
        ({"base_s": -1}, "base_s is -1; it must be at least 0"),
        ({"base_s": float("nan")}, "base_s is nan"),
        ({"base_s": 0.01, "link_bytes_per_s": -5.0}, "link_bytes_per_s is -5.0"),
    ],
)
def test_a_profile_says_what_is_wrong_with_it(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        profile_of(given)


def test_a_profile_is_what_its_fields_say() -> None:
    assert profile_of({"base_s": 0.02, "flat_sequences": 4}) == PipelineProfile(0.02, flat_sequences=4)
