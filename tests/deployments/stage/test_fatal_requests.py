"""A request that its target does not survive fails; no other request does, and no text changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.errors import StepFailedError
from engine.loop import Completion
from engine.request import Request
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step

POISON = 311
METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class Dies(Stage):
    """Loses its device over a prompt with the poison."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if any(POISON in work.tokens and work.tree is None for work in step.work):
            raise torch.AcceleratorError("poisoned")
        return super().forward(step, incoming)


async def keep_alive(served: Any, kinds: list[type[Stage]]) -> None:
    """What supervision does: a pipeline with a dead stage is replaced by one of the same kind."""
    while True:
        if not all(worker.is_alive for worker in served.stages.workers):
            served.replace(kinds)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("n_stages", [1, 2])
async def test_a_request_that_kills_every_pipeline_fails_alone(
    n_stages: int, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=40, stop_ids=()) for number in range(4)]
    fatal = make_job(10)
    kinds = [Dies] * n_stages
    async with serving(n_stages, kinds) as served, asyncio.timeout(240):
        keeper = asyncio.create_task(keep_alive(served, kinds))
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        with pytest.raises(StepFailedError, match="lost 3 times"):
            await served.answer(Request([*fatal.prompt, POISON], fatal.params))
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        assert (await served.settled())["pipelines_lost"] == 3
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def test_a_suspect_whose_stream_is_closed_sets_the_others_free(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job, fatal = make_job(1, "pld", max_tokens=40, stop_ids=()), make_job(10)
    async with serving(1, [Dies]) as served, asyncio.timeout(240):
        lane = served.router.lanes[0]
        doomed = asyncio.create_task(served.answer(Request([*fatal.prompt, POISON], fatal.params)))
        while lane.n_lost < 1:
            await asyncio.sleep(0.005)
        served.replace([Dies])
        while lane.n_lost < 2:
            await asyncio.sleep(0.005)
        doomed.cancel()
        await asyncio.gather(doomed, return_exceptions=True)
        served.replace([Dies])
        assert (await served.answer(job)).token_ids == offline(job).token_ids
        await served.settled()
