"""An engine that measures the time of each step, of the target's forward in it, and of each sequence."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from engine.events import StepEvent
from engine.loop import Engine
from engine.protocol import DraftPool
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.info import Target
from speculators.mixing import fault_isolation


@dataclass(slots=True)
class SequenceTimes:
    """Times of one sequence in seconds; lists have one entry per decode step."""

    seconds: float = 0.0  # its share of its steps, and the start of its speculator
    step_seconds: list[float] = field(default_factory=list)
    target_seconds: list[float] = field(default_factory=list)
    step_nodes: list[int] = field(default_factory=list)  # rows beyond one per sequence


class FailureCount(logging.Handler):
    """Counts, within a ``with`` block, the exceptions of speculators that fault isolation logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._n = 0

    def __enter__(self) -> FailureCount:
        logging.getLogger(fault_isolation.__name__).addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger(fault_isolation.__name__).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._n += 1

    def take(self) -> int:
        taken, self._n = self._n, 0
        return taken


class MeteredEngine(Engine):
    """An engine that times its steps and puts each request into the scope that ``scope`` returns.

    The sequences in a step share its time evenly, so that ``SequenceTimes.seconds`` of all sequences sum to the time
    that the engine worked, at any batch size; ``SequenceTimes.step_seconds`` holds the whole time of each step.
    """

    def __init__(self, target: Target, pool: DraftPool, options: SchedulerOptions, scope: Callable[[], str]) -> None:
        super().__init__(target, pool, options)
        self._scope = scope
        self._times: dict[int, SequenceTimes] = {}
        self.finished: deque[SequenceTimes] = deque()  # in the order of the events that ended sequences

    def submit(self, request: Request) -> int:
        """Queue a request in its scope; its time includes what the speculator does with the prompt."""
        request = msgspec.structs.replace(request, scope=self._scope())
        began = time.perf_counter()
        seq = super().submit(request)
        self._times[seq] = SequenceTimes(time.perf_counter() - began)
        return seq

    def step(self) -> list[tuple[int, StepEvent]]:
        began = time.perf_counter()
        step = self.next_step()
        if step is None:
            return []
        sent = time.perf_counter()
        result = self.target.step(step)
        target_seconds = time.perf_counter() - sent
        self.take(step, result)
        events = self.settle()
        seconds = time.perf_counter() - began
        rows = sum(len(work.tokens) + (0 if work.tree is None else len(work.tree)) for work in step.work)
        for work in step.work:
            times = self._times[work.seq]
            times.seconds += seconds / len(step.work)
            if work.tree is not None:
                times.step_seconds.append(seconds)
                times.target_seconds.append(target_seconds)
                times.step_nodes.append(rows - len(step.work))
        for seq, event in events:
            if event.finish_reason is not None:
                self.finished.append(self._times.pop(seq))
        return events
