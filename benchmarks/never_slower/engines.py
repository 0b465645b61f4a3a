"""Engines with a clock: the processor time of this process, or the time of a simulated machine."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.never_slower.machines import PipelineMachine, VirtualStages
from engine.events import StepEvent
from engine.loop import Engine
from engine.protocol import DraftPool
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.step import Step, StepResult, decode_result, decode_step, encode
from engine.step_cost import StepCosts
from engine.target_model.info import Target

# One thread works and waits for nothing, so the processor's time on a busy machine is the wall time on an idle one.
clock = time.process_time
EVICTED_BYTES = 32 << 20


@dataclass(slots=True)
class DraftCounts:
    """Counts over the steps of an engine."""

    trees: int = 0  # sequences that decoded, step by step
    nodes: int = 0  # of their trees

    def add(self, step: Step) -> None:
        """Count a step."""
        for work in step.work:
            if work.tree is not None:
                self.trees += 1
                self.nodes += len(work.tree)


class ClockedEngine(Engine):
    """An engine whose time is that of this process, while it works.

    Args:
        target: runs the steps, in this thread.
        pool: speculators.
        options: of the scheduler.
        costs: of the target.
    """

    def __init__(self, target: Target, pool: DraftPool, options: SchedulerOptions, costs: StepCosts) -> None:
        self._timed = _TimedTarget(target)
        super().__init__(self._timed, pool, options, costs, clock)
        self.now = 0.0  # seconds of work since the engine was made
        self.drafted = DraftCounts()

    @property
    def host_s(self) -> float:
        """Seconds outside the target."""
        return self.now - self._timed.seconds

    def submit(self, request: Request) -> int:
        """Queue a request; the beginning of its speculator takes time."""
        began = clock()
        seq = super().submit(request)
        self.now += clock() - began
        return seq

    def step(self) -> list[tuple[int, StepEvent]]:
        """Run one step, which takes time."""
        began = clock()
        events = super().step()
        self.now += clock() - began
        return events

    def take(self, step: Step, result: StepResult) -> None:
        """Commit a step's answer and draft."""
        self.drafted.add(step)
        super().take(step, result)


class _TimedTarget:
    """A target that measures its own time."""

    def __init__(self, target: Target) -> None:
        self._target, self.info = target, target.info
        self.seconds = 0.0

    def step(self, step: Step) -> StepResult:
        """Run a step; its result has the time by the clock, as the step costs of the speculators do."""
        began = clock()
        result = self._target.step(step)
        taken = clock() - began
        self.seconds += taken
        return replace(result, seconds=taken, stage_seconds=())


class _StepInFlight(NamedTuple):
    """A step that was sent and is not answered yet."""

    answered: float  # when its answer is back
    step: Step
    answer: bytes


class VirtualEngine(Engine):
    """An engine on a simulated machine, in virtual time.

    The target's time in this process does not count: a step takes the time in the machine's profile. The host's work
    (scheduling, drafting, messages between the router and its stages) takes its processor time in this process. As in a
    router, as many steps are in flight as the scheduler sends, and the host works meanwhile. On a real host other work
    evicts the processor's caches while a step runs: here a buffer is read before each answer, which takes no time.

    Args:
        target: writes the texts.
        pool: speculators.
        options: of the scheduler; its micro-batches are the machine's stages.
        costs: of the simulated machine.
        machine: gives the time of a step.
    """

    def __init__(
        self,
        target: Target,
        pool: DraftPool,
        options: SchedulerOptions,
        costs: StepCosts,
        machine: PipelineMachine,
    ) -> None:
        super().__init__(target, pool, options, costs, clock)
        self._evicting = np.ones(EVICTED_BYTES // 8)
        self._stages = VirtualStages(machine)
        self._flying: deque[_StepInFlight] = deque()
        self.now = 0.0  # seconds since the engine was made
        self.host_s = 0.0  # of these, in which the host worked
        self.drafted = DraftCounts()

    def submit(self, request: Request) -> int:
        """Queue a request; the beginning of its speculator takes time."""
        began = clock()
        seq = super().submit(request)
        self._host(began)
        return seq

    def step(self) -> list[tuple[int, StepEvent]]:
        """Wait for the next answer, and send what follows before the rest of its work; return its events."""
        self._send_all()
        if not self._flying:
            return []
        sent = self._flying.popleft()
        self.now = max(self.now, sent.answered)
        self._evicting.sum()
        began, before = clock(), self.host_s
        self.take(sent.step, decode_result(sent.answer))
        self._host(began)
        self._send_all()
        began = clock()
        events = self.settle(self.host_s - before)
        self._host(began)
        return events

    def _send_all(self) -> None:
        """Send steps until the scheduler has none to send now."""
        while self._send():
            pass

    def _send(self) -> bool:
        """Send a step if one should be; it is computed at once, because the texts do not depend on when."""
        began = clock()
        step = self.next_step(len(self._flying))
        message = b"" if step is None else encode(step)
        self._host(began)
        if step is None:
            return False
        began = clock()
        arrived = decode_step(message)
        stage_s = clock() - began
        seconds = self._stages.seconds(step)
        result = self.target.step(arrived)
        began = clock()
        answer = encode(replace(result, seconds=seconds[-1], stage_seconds=seconds))
        stage_s += clock() - began
        self.drafted.add(step)
        self._flying.append(_StepInFlight(self._stages.ends(step, self.now + stage_s, seconds), step, answer))
        return True

    def _host(self, began: float) -> None:
        """Add the host's time since ``began``."""
        taken = clock() - began
        self.host_s += taken
        self.now += taken
