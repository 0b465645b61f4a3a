"""The honest columns of the acceptance tables depend on these few lines."""

from __future__ import annotations

from app.bench.loops import loop_start, steps_before


def test_a_text_without_repetition_has_no_loop() -> None:
    assert loop_start(list(range(100))) is None


def test_two_occurrences_are_no_loop_yet() -> None:
    phrase = list(range(8))
    assert loop_start([*phrase, 90, *phrase, 91]) is None


def test_a_loop_starts_at_the_second_occurrence_of_what_occurs_three_times() -> None:
    phrase = list(range(8))
    assert loop_start([70, 71, *phrase, 90, *phrase, 91, *phrase]) == 2 + 8 + 1


def test_overlapping_occurrences_count() -> None:
    assert loop_start([5] * 10) == 1


def test_without_a_loop_every_step_counts() -> None:
    assert steps_before(None, [1, 3, 2]) == (6, 3)


def test_steps_that_begin_at_or_behind_the_cut_do_not_count() -> None:
    # output: token 0 from the prefill, then steps that begin at 1, 2, 5
    assert steps_before(5, [1, 3, 2]) == (4, 2)
    assert steps_before(4, [1, 3, 2]) == (4, 2)
    assert steps_before(1, [1, 3, 2]) == (0, 0)
