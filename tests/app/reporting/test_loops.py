"""Where a text begins to repeat itself."""

from __future__ import annotations

from app.reporting.loops import loop_start


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
