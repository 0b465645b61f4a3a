"""A real router on simulated stages, and the rates of its streams while they run steadily."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.pipeline_scheduling.stages import ProfiledStages, StageReport
from deployments.options import RouterOptions
from deployments.pipeline.connection import Pipeline, measure_pipeline
from deployments.router.drafting import InlineDraftClient
from deployments.router.lane_connection import TargetClient
from deployments.router.router import Router
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from speculators.registry import Factory

BURST_S = 0.002  # events so close together came from one step
Asked = tuple[list[int], int]  # prompt, tokens wanted


@dataclass(frozen=True, slots=True)
class StreamRates:
    """Rates over all of ``streams`` streams."""

    streams: int
    method: str
    steps_per_s: float  # steps of single sequences
    tokens_per_s: float
    step_s: float  # mean time between two events of one stream
    busy: list[float]  # share of the time that every stage worked, first to last
    late_s: float  # mean lateness of the stages' sleeps

    @property
    def tokens_per_step(self) -> float:
        """Tokens per forward and sequence."""
        return self.tokens_per_s / self.steps_per_s


@asynccontextmanager
async def router_on(
    stages: ProfiledStages, n_stages: int, extra: Mapping[str, Factory] | None = None, max_sequences: int = 64
) -> AsyncIterator[Router]:
    """A router as a server has it, step times measured; ``extra`` are speculators by the names of their methods."""
    pipeline = await Pipeline.connect(stages.endpoints)
    try:
        costs = await measure_pipeline(pipeline, stages.info)
    finally:
        pipeline.close()
    pool = SpeculatorPool(SpeculatorOptions(step_costs=costs), extra)
    limits = SchedulerOptions(max_sequences=max_sequences, n_micro_batches=n_stages, prefix_cache=False)
    options = RouterOptions("simulated", scheduler=limits, max_wait=None)
    drafter = InlineDraftClient(pool, stages.info.spec.vocab_size)
    target = TargetClient("Target", lambda: Pipeline.connect(stages.endpoints))
    router = Router(options, stages.info, drafter, [target], costs=costs)
    router.start()
    gc.collect()
    gc.freeze()
    try:
        yield router
    finally:
        await router.close()


class PromptStreams:
    """``n`` streams, each of which asks one prompt after the other until ``stop``."""

    def __init__(self, router: Router, asked: Sequence[Asked], n: int, method: str) -> None:
        self._router = router
        self._asked = asked
        self._method = method
        self.events: list[tuple[float, int, int]] = []  # moment, stream, tokens
        self._tasks = [asyncio.create_task(self._run(i, n)) for i in range(n)]
        self._ready = asyncio.Event()
        self._begun: set[int] = set()
        self._n = n

    async def _run(self, stream: int, n: int) -> None:
        turn = stream
        while True:
            prompt, tokens = self._asked[turn % len(self._asked)]
            params = SamplingParams(max_tokens=tokens)
            request = Request(prompt, params, self._method)
            async for event in self._router.stream(request):
                self._note(stream, len(event.token_ids))
            turn += n

    def _note(self, stream: int, n_tokens: int) -> None:
        self.events.append((time.perf_counter(), stream, n_tokens))
        self._begun.add(stream)
        if len(self._begun) == self._n:
            self._ready.set()

    async def all_begun(self) -> None:
        """Until every stream has its first token.

        Raises:
            Exception: what a stream failed with.
        """
        waiting = asyncio.create_task(self._ready.wait())
        done, _ = await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {waiting}:
            task.result()

    async def stop(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def rates(
    router: Router, stages: ProfiledStages, asked: Sequence[Asked], n: int, method: str, seconds: float, settle: float
) -> StreamRates:
    """Measure ``n`` streams for ``seconds``, beginning ``settle`` seconds after all have their first token."""
    streams = PromptStreams(router, asked, n, method)
    try:
        await streams.all_begun()
        await asyncio.sleep(settle)
        before, began = stages.reports(), time.perf_counter()
        await asyncio.sleep(seconds)
        after, ended = stages.reports(), time.perf_counter()
    finally:
        await streams.stop()
    while (await router.state())["running"]:
        await asyncio.sleep(0.01)
    events = [event for event in streams.events if began <= event[0] <= ended]
    steps_per_s, tokens_per_s = per_second(events)
    return StreamRates(
        n,
        method,
        steps_per_s,
        tokens_per_s,
        _between(events),
        _busy(before, after, ended - began),
        _late(before, after),
    )


def per_second(events: Sequence[tuple[float, int, int]]) -> tuple[float, float]:
    """(events, tokens) per second: from the first burst, which is not counted, to the last, which is.

    A step brings a burst of events; counting both ends, or neither, would be off by one of them.
    """
    first = next((i + 1 for i, (one, two) in enumerate(pairwise(events)) if two[0] - one[0] > BURST_S), None)
    assert first is not None, "one step is no rate: measure longer"
    span = events[-1][0] - events[first - 1][0]
    counted = events[first:]
    return len(counted) / span, sum(tokens for _, _, tokens in counted) / span


def _between(events: Sequence[tuple[float, int, int]]) -> float:
    """Mean seconds between two events of one stream."""
    by_stream: dict[int, list[float]] = {}
    for moment, stream, _ in events:
        by_stream.setdefault(stream, []).append(moment)
    spans = [(moments[-1] - moments[0], len(moments) - 1) for moments in by_stream.values() if len(moments) > 1]
    return sum(span for span, _ in spans) / max(1, sum(n for _, n in spans))


def _busy(before: Sequence[StageReport], after: Sequence[StageReport], seconds: float) -> list[float]:
    return [(b.busy_s - a.busy_s) / seconds for a, b in zip(before, after, strict=True)]


def _late(before: Sequence[StageReport], after: Sequence[StageReport]) -> float:
    sleeps = sum(b.lateness.sleeps - a.lateness.sleeps for a, b in zip(before, after, strict=True))
    total = sum(b.lateness.total - a.lateness.total for a, b in zip(before, after, strict=True))
    return total / max(1, sleeps)
