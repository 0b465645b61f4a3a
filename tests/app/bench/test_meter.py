"""The engine that times its steps: a batch's time is shared by its sequences, and nothing of it is lost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.bench.meter import MeteredEngine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.local import LocalTarget
from speculators.pool import SpeculatorPool


class Slow:
    """A target that takes its time, in steps of two sequences or one."""

    def __init__(self, target: LocalTarget) -> None:
        self.info = target.info
        self._target = target

    def step(self, step: Any) -> Any:
        time.sleep(0.01)
        return self._target.step(step)


def test_shares_of_a_batch_sum_to_the_time_that_went_by(target: LocalTarget) -> None:
    engine = MeteredEngine(Slow(target), SpeculatorPool(), SchedulerOptions(), lambda: "")
    params = [SamplingParams(max_tokens=n) for n in (4, 9)]
    for one in params:
        engine.submit(Request([5, 6, 7], one, "pld"))
    began = time.perf_counter()
    while engine.has_work:
        engine.step()
    went_by = time.perf_counter() - began
    times = list(engine.finished)
    assert [len(one.step_seconds) for one in times] == [len(one.target_seconds) for one in times]
    assert sum(one.seconds for one in times) == pytest.approx(went_by, rel=0.2)
    assert all(inner >= 0.01 for one in times for inner in one.target_seconds)
    assert times[0].seconds < times[1].seconds < went_by
