"""Rates are what sequences took, and a newcomer's wait follows from them and from what is ahead of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.router.service_rate import MEMORY_S, ServiceRate, WaitEstimate, seconds_until_slot
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step import Step, Work


def sequence(n_prompt: int = 100, max_tokens: int = 100, n_output: int = 0, n_cached: int = 0, tenant: str = "") -> Any:
    """What rates and estimates read of a sequence."""
    return SimpleNamespace(
        tokens=[5] * (n_prompt + n_output),
        n_prefill=n_prompt if n_output == 0 else n_prompt + n_output - 1,
        n_cached=n_cached,
        n_output=n_output,
        max_new=max_tokens - n_output,
        request=Request([5] * n_prompt, SamplingParams(max_tokens=max_tokens), tenant=tenant),
    )


def measured() -> ServiceRate:
    """0.01 s per prompt token, 0.05 s per output token; requests use half of their ``max_tokens``."""
    rate = ServiceRate()
    rate.sent(Step(0, [Work(0, 0, [5] * 100)]), 1.0)
    rate.answered(0, 100, 1, 2.0)
    for n in range(10):
        rate.answered(0, 0, 2, 2.0 + 0.1 * (n + 1))
    rate.finished(sequence(max_tokens=40, n_output=20))
    return rate


def test_rates_are_what_sequences_took_and_lengths_are_what_they_used() -> None:
    assert not ServiceRate().is_known
    rate = measured()
    assert rate.is_known
    assert rate.expected_output(sequence(max_tokens=100)) == pytest.approx(50)
    assert rate.remaining(sequence(200, 100)) == pytest.approx(2.0 + 50 * 0.05, rel=0.1)


def test_what_was_read_and_written_already_takes_no_time() -> None:
    rate = measured()
    assert rate.remaining(sequence(200, 100, n_cached=200)) == pytest.approx(50 * 0.05, rel=0.1)
    assert rate.remaining(sequence(200, 100, n_output=80, n_cached=279)) == pytest.approx(10 * 0.05, rel=0.1)


def test_before_any_request_has_ended_all_of_max_tokens_is_expected_and_at_least_one_token_always() -> None:
    assert ServiceRate().expected_output(sequence(max_tokens=100)) == 100
    assert measured().expected_output(sequence(max_tokens=10, n_output=10)) == 1.0


def test_measurements_fade() -> None:
    rate = measured()
    for n in range(100):  # ten times slower, for many times the memory
        rate.answered(0, 0, 1, 3.0 + MEMORY_S / 20 * (n + 1))
    assert rate.remaining(sequence(0, 100)) == pytest.approx(50 * MEMORY_S / 20, rel=0.1)


def test_the_clock_of_a_forgotten_sequence_stands_still() -> None:
    rate = measured()
    before = rate.remaining(sequence())
    rate.forget(0)
    rate.answered(0, 0, 1, 100.0)
    assert rate.remaining(sequence()) == before
    rate.sent(Step(1, [Work(1, 0, [5])]), 100.0)
    rate.forget_all()
    rate.answered(1, 0, 1, 200.0)
    assert rate.remaining(sequence()) == before


@pytest.mark.parametrize(
    ("n_slots", "running", "queue", "waits"),
    [
        (2, [], [], [0.0]),
        (2, [5.0], [], [0.0]),
        (2, [5.0, 3.0], [4.0, 4.0], [3.0, 5.0, 7.0]),
        (1, [2.0], [1.0, 1.0, 1.0], [2.0, 3.0, 4.0, 5.0]),
    ],
)
def test_a_slot_is_free_when_the_sequences_ahead_are_done(
    n_slots: int, running: list[float], queue: list[float], waits: list[float]
) -> None:
    assert seconds_until_slot(n_slots, running, queue) == pytest.approx(waits)


def scheduler(running: list[Any], queue: list[Any], max_sequences: int = 4, n_blocks: int = 1000) -> Any:
    """A scheduler whose newcomers say themselves how many of the queue are ahead of them."""
    return SimpleNamespace(
        running=running,
        sequences=[*running, *queue],
        snapshot_queue=lambda: SimpleNamespace(sequences=queue, n_ahead=lambda newcomer: newcomer),
        info=SimpleNamespace(n_blocks=n_blocks, block_size=16),
        options=SimpleNamespace(max_sequences=max_sequences),
    )


def test_without_measurements_no_wait_is_known() -> None:
    estimate = WaitEstimate(scheduler([], [sequence()]), ServiceRate())
    assert estimate.seconds(0) is None  # type: ignore[arg-type]


def test_the_wait_grows_with_what_is_ahead_in_the_queue() -> None:
    one = sequence(100, 100, n_cached=100)  # 2.5 s
    estimate = WaitEstimate(scheduler([one], [one, one], max_sequences=1), measured())
    waits: list[Any] = [estimate.seconds(n) for n in range(3)]  # type: ignore[arg-type]
    assert waits == pytest.approx([2.5, 5.0, 7.5], rel=0.1)


def test_where_memory_is_short_fewer_slots_count_than_sequences_may_run() -> None:
    one = sequence(100, 100, n_cached=100)  # 150 tokens at its end
    ample = WaitEstimate(scheduler([one], [one], max_sequences=2), measured())
    short = WaitEstimate(scheduler([one], [one], max_sequences=2, n_blocks=10), measured())
    assert ample.seconds(0) == 0.0  # type: ignore[arg-type]
    assert short.seconds(0) == pytest.approx(2.5, rel=0.1)  # type: ignore[arg-type]


def test_waiting_sequences_are_counted_by_tenant() -> None:
    queue = [sequence(tenant="a"), sequence(tenant="b"), sequence(tenant="a")]
    assert WaitEstimate(scheduler([], queue), ServiceRate()).waiting == {"a": 2, "b": 1}
