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
from engine.step import Step, StepResult
from engine.target_model.info import Target
from speculators.mixing import fault_isolation


@dataclass(slots=True)
class SequenceTimes:
    """Times of one sequence in seconds; a list has one entry per decode step."""

    seconds: float = 0.0  # its share of its steps, and the start of its speculator
    step_seconds: list[float] = field(default_factory=list)
    target_seconds: list[float] = field(default_factory=list)
    step_nodes: list[int] = field(default_factory=list)  # rows beyond one per sequence


class FailureCount(logging.Handler):
    """Counts the exceptions of speculators that fault isolation logs; decoding goes on without drafts after one.

    Use it as a context; ``take`` returns the failures since its last call.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._n = 0

    def __enter__(self) -> FailureCount:
        logging.getLogger(fault_isolation.__name__).addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger(fault_isolation.__name__).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Count one failure."""
        self._n += 1

    def take(self) -> int:
        """Failures since the last call."""
        taken, self._n = self._n, 0
        return taken


class TimedTarget:
    """A target that remembers its last step and the seconds it took."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.info = target.info
        self.last: Step | None = None
        self.seconds = 0.0

    def step(self, step: Step) -> StepResult:
        """Run a step and measure it."""
        began = time.perf_counter()
        result = self._target.step(step)
        self.seconds = time.perf_counter() - began
        self.last = step
        return result


class MeteredEngine(Engine):
    """An engine that times its steps and puts each job into a scope.

    The sequences in a step share its time evenly, so that ``SequenceTimes.seconds`` of all sequences sum to the time
    that the engine worked, at any batch size; ``SequenceTimes.step_seconds`` holds the whole time of each step.

    Args:
        scope: called for every job; speculators share what they learn among the jobs of one scope.
    """

    def __init__(self, target: Target, pool: DraftPool, options: SchedulerOptions, scope: Callable[[], str]) -> None:
        self._timed = TimedTarget(target)
        super().__init__(self._timed, pool, options)
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

    def cancel(self, seq: int) -> None:
        """Stop a request and forget its times."""
        super().cancel(seq)
        self._times.pop(seq, None)

    def step(self) -> list[tuple[int, StepEvent]]:
        """Run one step and share its time among the sequences in it."""
        self._timed.last = None
        began = time.perf_counter()
        events = super().step()
        seconds = time.perf_counter() - began
        if self._timed.last is not None:
            self._share(self._timed.last, seconds)
        for seq, event in events:
            if event.finish_reason is not None:
                self.finished.append(self._times.pop(seq))
        return events

    def _share(self, step: Step, seconds: float) -> None:
        rows = sum(len(work.tokens) + (0 if work.tree is None else len(work.tree)) for work in step.work)
        for work in step.work:
            times = self._times[work.seq]
            times.seconds += seconds / len(step.work)
            if work.tree is not None:
                times.step_seconds.append(seconds)
                times.target_seconds.append(self._timed.seconds)
                times.step_nodes.append(rows - len(step.work))
