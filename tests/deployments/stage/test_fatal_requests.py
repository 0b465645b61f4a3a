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
from tests.support.waiting import LIMIT_S

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
    """Replace a pipeline with a dead stage by one of the same kind, like the supervisor."""
    while True:
        if not all(worker.is_alive for worker in served.stages.workers):
            served.replace(kinds)
        await asyncio.sleep(0.01)


async def test_a_request_that_kills_every_pipeline_fails_alone(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=20, stop_ids=()) for number in range(4)]
    fatal = make_job(10)
    kinds = [Dies] * 2
    async with serving(2, kinds) as served, asyncio.timeout(LIMIT_S):
        keeper = asyncio.create_task(keep_alive(served, kinds))
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        with pytest.raises(StepFailedError, match="lost 3 times"):
            await served.answer(Request([*fatal.prompt, POISON], fatal.params))
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        assert (await served.settled())["pipelines_lost"] == 3
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
