"""Rates are what sequences took, and the wait of a new request follows from them and from what is ahead of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.router.service_rate import MEMORY_S, ServiceRate, WaitEstimate
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step import Step, Work
from tests.deployments.router.router_fakes import measured_rate


def sequence(n_prompt: int = 100, max_tokens: int = 100, n_output: int = 0, n_cached: int = 0, tenant: str = "") -> Any:
    """The fields of a sequence that rates and estimates read."""
    return SimpleNamespace(
        tokens=[5] * (n_prompt + n_output),
        n_prefill=n_prompt if n_output == 0 else n_prompt + n_output - 1,
        n_cached=n_cached,
        n_output=n_output,
        max_new=max_tokens - n_output,
        request=Request([5] * n_prompt, SamplingParams(max_tokens=max_tokens), tenant=tenant),
    )


@pytest.mark.parametrize(
    ("one", "seconds"),
    [
        (sequence(200, 100), 200 * 0.01 + 50 * 0.05),
        (sequence(200, 100, n_cached=200), 50 * 0.05),
        (sequence(200, 100, n_output=80, n_cached=279), 10 * 0.05),
        (sequence(200, 10, n_output=10, n_cached=209), 0.05),  # one token at least
    ],
)
def test_what_is_left_of_a_sequence_takes_as_long_as_it_took_others(one: Any, seconds: float) -> None:
    assert measured_rate().remaining(one) == pytest.approx(seconds, rel=0.1)


def test_before_any_request_has_ended_all_of_max_tokens_is_expected_and_no_wait_is_known() -> None:
    rate = ServiceRate()
    assert rate.expected_output(sequence(max_tokens=100)) == 100
    assert WaitEstimate(scheduler([], [sequence()]), rate).seconds(0) is None  # type: ignore[arg-type]


def test_measurements_fade() -> None:
    rate = measured_rate()
    for n in range(100):  # ten times slower, for many times the memory
        rate.on_result(0, 0, 1, 3.0 + MEMORY_S / 20 * (n + 1))
    assert rate.remaining(sequence(0, 100)) == pytest.approx(50 * MEMORY_S / 20, rel=0.1)


def test_the_clock_of_a_forgotten_sequence_stands_still() -> None:
    rate = measured_rate()
    before = rate.remaining(sequence())
    rate.forget(0)
    rate.on_result(0, 0, 1, 100.0)
    rate.on_sent(Step(1, [Work(1, 0, [5])]), 100.0)
    rate.forget_all()
    rate.on_result(1, 0, 1, 200.0)
    assert rate.remaining(sequence()) == before


def scheduler(running: list[Any], queue: list[Any], max_sequences: int = 4, n_blocks: int = 1000) -> Any:
    """A scheduler whose new sequences are the number of queued sequences ahead of them."""
    return SimpleNamespace(
        running=running,
        sequences=[*running, *queue],
        snapshot_queue=lambda: SimpleNamespace(sequences=queue, n_ahead=lambda sequence: sequence),
        info=SimpleNamespace(n_blocks=n_blocks, block_size=16),
        options=SimpleNamespace(max_sequences=max_sequences),
    )


@pytest.mark.parametrize(
    ("queued", "max_sequences", "n_blocks", "waits"),
    [
        (2, 1, 1000, [2.5, 5.0, 7.5]),
        (3, 2, 1000, [0.0, 2.5, 2.5, 5.0]),
        (1, 2, 10, [2.5, 5.0]),  # memory for one sequence only: fewer slots than ``max_sequences``
    ],
)
def test_the_wait_grows_with_the_queue_and_with_short_memory(
    queued: int, max_sequences: int, n_blocks: int, waits: list[float]
) -> None:
    one = sequence(100, 100, n_cached=100)  # 2.5 s, and 150 tokens at its end
    estimate: Any = WaitEstimate(scheduler([one], [one] * queued, max_sequences, n_blocks), measured_rate())
    assert [estimate.seconds(n) for n in range(queued + 1)] == pytest.approx(waits, rel=0.1)
