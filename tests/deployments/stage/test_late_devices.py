"""Devices that finish after the loop that drives them, or never."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import TargetLostError
from engine.loop import Completion
from engine.request import Request
from engine.stage.base import Activations, Computing
from engine.stage.stage import Stage
from engine.step import Step
from tests.deployments.stage.stage_steps import connected, first_step
from tests.support.waiting import LIMIT_S, wait_until_async

CPU = torch.device("cpu")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class Late(Stage):
    """Like a GPU: activations are valid some time after ``forward`` has returned."""

    @torch.inference_mode()
    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        made = super().forward(step, incoming)
        self._late = Computed(made.hidden.clone(), made.hidden)
        made.hidden.fill_(float("nan"))
        return made

    def computing(self) -> Computing:
        return self._late


class Computed:
    """The work of a device, which writes valid activations at its end."""

    def __init__(self, true: Tensor, to: Tensor) -> None:
        self._true, self._to = true, to

    def wait(self) -> float:
        time.sleep(0.002)
        with torch.inference_mode():
            self._to.copy_(self._true)
        return 3.5


class StuckDevice:
    """A device that finishes when the test lets it."""

    def __init__(self, go_on: threading.Event) -> None:
        self._go_on = go_on

    def wait(self) -> float:
        assert self._go_on.wait(LIMIT_S)
        return 0.0


def hanging(go_on: threading.Event) -> type[Stage]:
    """A stage whose device hangs until ``go_on``."""

    class StageOnStuckDevice(Late):
        def computing(self) -> Computing:
            return StuckDevice(go_on)

    return StageOnStuckDevice


@pytest.mark.parametrize("transport", ["auto", "gloo"])
async def test_texts_are_the_same_when_a_device_finishes_after_its_loop(
    transport: str, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, "pld", max_tokens=12, stop_ids=(), temperature=0.8) for number in range(3)]
    async with serving(3, [Late, Late, Stage], transport=transport) as served:
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
        pipeline = await connected(served)
        for step in (first_step(), Step(1, [])):
            pipeline.send(step)
        first, second = [await pipeline.receive() for _ in range(2)]
        assert first.stage_seconds[:2] == (3.5, 3.5)  # of the device, not of the loop
        assert all(seconds != 3.5 for seconds in second.stage_seconds)
        await wait_until_async(lambda: all(worker.busy_since is None for worker in served.stages.workers))
        pipeline.close()


async def test_a_stage_whose_device_hangs_shows_as_busy_and_serves_no_other_router(serving: Any) -> None:
    go_on = threading.Event()
    async with serving(2, [hanging(go_on), Stage]) as served:
        pipeline = await connected(served)
        first, last = served.stages.workers
        before = time.monotonic()
        pipeline.send(first_step())
        pipeline.send(Step(1, []))
        await wait_until_async(lambda: first._progress._computing is not None)  # the device has the step
        began = first.busy_since
        assert before <= began <= time.monotonic()
        await wait_until_async(lambda: last._stage._running.step is not None and last.busy_since is None)  # planned
        pipeline.close()
        await wait_until_async(lambda: first.n_sequences == 0)  # the loop has noticed
        again = await connected(served)
        again.send(Step(0, []))
        answer = asyncio.ensure_future(again.receive())
        assert not (await asyncio.wait([answer], timeout=0.05))[0]
        assert first.busy_since == began
        go_on.set()
        assert (await answer).step_id == 0
        await wait_until_async(lambda: first.busy_since is None)
        again.close()


async def test_a_device_that_fails_ends_its_stage(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    class Breaks(Late):
        def computing(self) -> Computing:
            class BrokenDevice:
                def wait(self) -> float:
                    raise torch.AcceleratorError("unspecified launch failure")

            return BrokenDevice()

    async with serving(2, [Breaks, Stage]) as served:
        pipeline = await connected(served)
        pipeline.send(first_step())
        with pytest.raises(TargetLostError):
            await pipeline.receive()
        assert not served.stages.workers[0].is_alive
        pipeline.close()
