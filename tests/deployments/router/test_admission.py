"""Which requests are refused because of too much work, when they may come back, and that no others are refused."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

import pytest

from deployments.options import RouterOptions
from deployments.router.admission import Admission
from engine.errors import OverloadedError
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.scheduler import Scheduler, SchedulerOptions
from engine.scheduling.sequence import Sequence
from tests.deployments.conftest import METHODS, Serving, job_of
from tests.deployments.router.router_fakes import measured_rate
from tests.deployments.slow_stage import GATE, Gated
from tests.support.metrics import values
from tests.support.virtual_pipeline import INFO


class BusyLane:
    """A lane with a real scheduler and known rates, whose first sequences run and never end."""

    accepts_requests = True

    def __init__(self, max_sequences: int, n_blocks: int) -> None:
        limits = SchedulerOptions(max_sequences=max_sequences, max_waiting=sys.maxsize)
        self.scheduler = Scheduler(
            BatchingPolicy(replace(INFO, n_blocks=n_blocks, max_model_len=64 * n_blocks), limits)
        )
        self.service_rate = measured_rate()
        self.n_looks = 0
        self._snapshot_queue = self.scheduler.snapshot_queue
        self.scheduler.snapshot_queue = self._look  # type: ignore[method-assign]

    def _look(self) -> Any:
        self.n_looks += 1
        return self._snapshot_queue()

    sequences = property(lambda self: self.scheduler.sequences)
    n_waiting = property(lambda self: self.scheduler.n_waiting)


class Queue:
    """Sends requests of 1000 tokens, of which 500 are expected: 25 s each, and 1 s for the prompt."""

    def __init__(self, n_lanes: int = 1, n_blocks: int = 4096, **options: Any) -> None:
        limits = SchedulerOptions(max_sequences=options.pop("max_sequences", 1), max_waiting=options.pop("waiting", 8))
        self.lanes = [BusyLane(limits.max_sequences, n_blocks) for _ in range(n_lanes)]
        self.now = 0.0
        chosen = RouterOptions("tiny", scheduler=limits, **{"max_wait": None} | options)
        self._admission = Admission(self.lanes, chosen, lambda: self.now)  # type: ignore[arg-type]
        self._n = 0

    def send(self, tenant: str = "", priority: int = 0) -> OverloadedError | None:
        """The refusal, if the request is refused."""
        request = Request([5] * 100, SamplingParams(max_tokens=1000), max_nodes=4, tenant=tenant, priority=priority)
        sequence = Sequence.of(self._n, request)
        lane = min(self.lanes, key=lambda lane: len(lane.sequences))
        try:
            self._admission.check(sequence, lane)  # type: ignore[arg-type]
        except OverloadedError as refusal:
            return refusal
        self._n += 1
        lane.scheduler.submit(sequence)
        lane.scheduler.next_step(self._n, 0)
        return None

    def admitted(self, n: int, **request: Any) -> list[bool]:
        return [self.send(**request) is None for _ in range(n)]


async def test_requests_beyond_a_full_queue_are_refused_and_the_others_get_their_texts(serving: Serving) -> None:
    async with serving(1, [Gated], max_sequences=2, max_waiting=6) as served:
        GATE.close()
        answers = [served.begin(job_of(number, METHODS[number % 4], max_tokens=20)) for number in range(12)]
        await asyncio.sleep(0)
        refused = [answer for answer in answers if answer.task is not None and answer.task.done()]
        assert len(refused) == 4
        for answer in refused:
            with pytest.raises(OverloadedError) as caught:
                await answer
            assert caught.value.retry_after >= 1.0
        late = served.begin(job_of(20), resumed=True)  # an earlier router has admitted it
        GATE.open()
        await served.compare([late, *(answer for answer in answers if answer not in refused)])
        assert values(served.router.metrics_text(), "spectra:requests_refused_total") == [4]


def test_a_request_that_would_wait_too_long_hears_when_to_come_back() -> None:
    queue = Queue(max_wait=20.0)
    assert queue.send() is None
    refusal = queue.send()
    assert refusal is not None
    assert "more than 20 s" in str(refusal)
    assert refusal.retry_after == pytest.approx(26 - 20, rel=0.1)


def test_with_short_memory_requests_wait_although_slots_are_free() -> None:
    queue = Queue(max_wait=10.0, max_sequences=64, n_blocks=20)  # of 64 tokens: two requests of 600
    outcomes = [queue.send() for _ in range(60)]
    assert outcomes[:2] == [None, None]
    assert outcomes[-1] is not None
    assert all(refusal is None or "more than 10 s" in str(refusal) for refusal in outcomes)


def test_a_request_is_judged_by_the_sequences_ahead_of_it() -> None:
    queue = Queue(waiting=3)
    assert queue.admitted(5) == [True] * 4 + [False]
    last, first = queue.send(), queue.send(priority=-1)
    assert last is not None
    assert first is not None
    assert last.retry_after == pytest.approx(4 * first.retry_after, rel=0.1)


def test_a_flood_of_one_tenant_does_not_shut_out_another_and_the_queue_has_an_end() -> None:
    queue = Queue(waiting=4)
    assert queue.admitted(10, tenant="flood") == [True] * 5 + [False] * 5
    assert queue.admitted(4, tenant="other") == [True, True, False, False]  # an equal share: two of four
    assert queue.admitted(1, tenant="third") == [True]
    assert queue.admitted(1, tenant="flood") == [False]
    queue = Queue(waiting=4)
    assert sum(queue.send(f"tenant-{n}") is None for n in range(20)) == 9  # one runs, twice four wait
    assert sum(Queue(2, max_sequences=2, waiting=3).admitted(12)) == 2 * 2 + 3  # two lanes


def test_a_flood_of_refusals_needs_one_look_at_the_queue() -> None:
    queue = Queue(waiting=2)
    assert queue.admitted(3) == [True] * 3
    before = queue.lanes[0].n_looks
    assert queue.admitted(100) == [False] * 100
    assert queue.lanes[0].n_looks == before + 1
    queue.now = 1.0  # the estimate is old
    assert queue.admitted(100) == [False] * 100
    assert queue.lanes[0].n_looks == before + 2
