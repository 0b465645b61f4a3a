"""Failures around the router reach only the requests they happened to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch

from deployments.options import RouterOptions
from deployments.pipeline.connection import Pipeline
from deployments.router.draft_client import Drafts, InlineDraftClient
from deployments.router.router import Router
from engine.errors import StepFailedError, TargetLostError
from engine.loop import Completion
from engine.protocol import Branch
from engine.request import Request
from engine.scheduling.drafting import DraftRound
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step, WorkResult
from speculators.pool import SpeculatorPool
from tests.support.slow_stage import Slow

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
POISON = 311  # a prompt with this token makes the stages below fail
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


def is_poisoned(step: Step) -> bool:
    return any(POISON in work.tokens and work.tree is None for work in step.work)


class FailsBefore(Stage):
    """Raises before it has looked at a poisoned step."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if is_poisoned(step):
            raise RuntimeError("poisoned")
        return super().forward(step, incoming)


class FailsAfter(Stage):
    """Raises when half of its work on a poisoned step is done."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        activations = super().forward(step, incoming)
        if is_poisoned(step):
            raise MemoryError("poisoned")
        return activations


class FailsToVerify(Stage):
    """Raises in the last part of a poisoned step."""

    def verify(self, activations: Activations) -> list[WorkResult]:
        if any(POISON in work.tokens and work.tree is None for work in self._running.works):
            raise ValueError("poisoned")
        return super().verify(activations)


class LosesItsDevice(Stage):
    """Raises what a GPU that is gone for good raises."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if is_poisoned(step):
            raise torch.AcceleratorError("poisoned")
        return super().forward(step, incoming)


def poisoned(job: Request) -> Request:
    return Request([*job.prompt, POISON], job.params, job.method)


@pytest.mark.parametrize("n_stages", [1, 2])
async def test_two_hundred_cancelled_requests_leave_nothing_and_a_survivor_notices_nothing(
    n_stages: int, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    chance = random.Random(n_stages)
    endless: dict[str, Any] = {"max_tokens": 900, "stop_ids": ()}

    async def go_away(number: int) -> None:
        await asyncio.sleep(chance.random() * 3)
        job = make_job(number, METHODS[number % 4], temperature=chance.choice((0.0, 0.9)), **endless)
        if number % 2:  # the consumer closes the iterator after some events, or before the first
            events = served.router.stream(job)
            for _ in range(chance.randrange(6)):
                await anext(events)
            await events.aclose()
        else:  # the consumer is cancelled wherever it happens to wait
            consumer = asyncio.create_task(served.answer(job))
            await asyncio.sleep(chance.random() * 0.2)
            consumer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consumer

    async with serving(n_stages, max_sequences=16) as served:
        survivor = make_job(1000, "pld+spectra-core", temperature=0.8, max_tokens=200)
        surviving = asyncio.create_task(served.answer(survivor))
        await asyncio.gather(*(go_away(number) for number in range(200)))
        assert (await surviving).token_ids == offline(survivor).token_ids
        await served.settled()
        again = make_job(1001, "pld")
        assert (await served.answer(again)).token_ids == offline(again).token_ids


@pytest.mark.parametrize(
    ("n_stages", "place", "kind"),
    [
        (1, 0, FailsBefore),
        (1, 0, FailsAfter),
        (1, 0, FailsToVerify),
        (2, 0, FailsBefore),
        (2, 0, FailsAfter),
        (2, 1, FailsBefore),
        (2, 1, FailsAfter),
        (2, 1, FailsToVerify),
    ],
)
async def test_a_step_that_fails_takes_only_its_own_sequences_with_it(
    n_stages: int, place: int, kind: type[Stage], serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    kinds = [kind if i == place else Stage for i in range(n_stages)]
    bystanders = [make_job(number, METHODS[number % 4], max_tokens=40) for number in range(4)]
    async with serving(n_stages, kinds) as served:
        for number in range(10, 12):  # without other requests, the poisoned step holds no other sequence
            with pytest.raises(StepFailedError, match="poisoned"):
                await served.answer(poisoned(make_job(number, "pld")))
            answers = await asyncio.gather(*(served.answer(job) for job in bystanders))
            assert [a.token_ids for a in answers] == [offline(job).token_ids for job in bystanders]
        state = await served.settled()
        assert state["pipelines_lost"] == 0


@pytest.mark.parametrize(("n_stages", "place"), [(1, 0), (2, 0), (2, 1)])
async def test_what_ends_with_a_failing_step_is_forgotten_by_every_stage(
    n_stages: int, place: int, serving: Any, make_job: MakeJob
) -> None:
    kinds = [FailsBefore if i == place else Stage for i in range(n_stages)]
    async with serving(n_stages, kinds, max_sequences=1) as served:
        first = asyncio.create_task(served.answer(make_job(1)))
        await asyncio.sleep(0)
        with pytest.raises(StepFailedError):  # waits for the first, and starts in the step that says the first is over
            await served.answer(poisoned(make_job(2)))
        await first
        await served.settled()


async def test_in_company_exactly_the_sequences_of_the_failed_step_fall(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    fell: set[int] = set()

    class Records(FailsBefore):
        def forward(self, step: Step, incoming: Activations | None) -> Activations:
            if is_poisoned(step):
                fell.update(work.seq for work in step.work)
            return super().forward(step, incoming)

    jobs = [make_job(number, "pld", max_tokens=60) for number in range(6)]
    async with serving(1, [Records]) as served:
        going = [asyncio.create_task(served.answer(job)) for job in jobs]  # sequences 0 to 5
        await asyncio.sleep(0.05)
        with pytest.raises(StepFailedError):
            await served.answer(poisoned(make_job(10)))  # sequence 6
        for seq, outcome in enumerate(await asyncio.gather(*going, return_exceptions=True)):
            assert isinstance(outcome, StepFailedError) == (seq in fell)
            assert seq in fell or outcome.token_ids == offline(jobs[seq]).token_ids
        assert 6 in fell
        await served.settled()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}], ids=["greedy", "seeded"])
@pytest.mark.parametrize(("n_stages", "dies"), [(1, 0), (2, 0), (2, 1), (3, 1)])
async def test_streams_go_on_with_the_same_text_on_a_fresh_pipeline(
    n_stages: int, dies: int, sampling: dict[str, Any], serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=70, stop_ids=(), **sampling) for number in range(6)]
    async with serving(n_stages, [Slow] * n_stages) as served:
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        for _ in range(2):
            while not served.router.is_ready:  # else the second pipeline is lost before it was ever up
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.4)
            served.stages.workers[dies].close()
            while served.router.is_ready:  # also when a stage in the middle is lost, and at once
                await asyncio.sleep(0.005)
            served.replace()
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
            assert answer.events[-1].stats.preemptions > 0
        assert (await served.settled())["pipelines_lost"] == 2


async def test_requests_that_come_while_no_pipeline_is_up_wait_for_one(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    async with serving() as served:
        await served.answer(make_job(1))
        served.stages.close()
        job = make_job(2, "spectra-core")
        waiting = asyncio.create_task(served.answer(job))
        gone = asyncio.create_task(served.answer(make_job(3, "pld")))
        await asyncio.sleep(0.3)
        gone.cancel()
        assert not waiting.done()
        assert not served.router.is_ready
        served.replace()
        assert (await waiting).token_ids == offline(job).token_ids
        await served.settled()


async def test_a_device_that_fails_takes_its_stage_down_and_the_router_moves_on(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    running = make_job(1, "pld", max_tokens=200)
    async with serving(1, [LosesItsDevice]) as served:
        going = asyncio.create_task(served.answer(running))
        await asyncio.sleep(0.05)
        fatal = asyncio.create_task(served.answer(poisoned(make_job(2))))
        broken = served.stages.workers[0]
        while broken.is_alive:
            await asyncio.sleep(0.01)
        served.replace()
        assert (await going).token_ids == offline(running).token_ids
        await fatal  # the fresh device has nothing against it
        await served.settled()


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x80", b"not msgpack" * 100], ids=repr)
async def test_a_malformed_frame_costs_a_reconnection_and_no_text(
    garbage: bytes, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(1, "pld", temperature=0.8, max_tokens=150)
    async with serving(2) as served:
        events = served.router.stream(job)
        tokens = list((await anext(events)).token_ids)
        served.router.lanes[0].connection.pipeline._steps.send(garbage)
        async for event in events:
            tokens += event.token_ids
        assert tokens == offline(job).token_ids
        assert (await served.settled())["pipelines_lost"] == 1


async def test_a_router_hears_nothing_that_was_meant_for_the_one_before(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(1, max_tokens=30)
    async with serving(2, [Slow, Slow]) as served:
        await served.router.close()
        for _ in range(3):
            before = Router(RouterOptions(), served.info, InlineDraftClient(SpeculatorPool(), 320), [served.target(0)])
            before.start()
            half = before.stream(make_job(2, max_tokens=100))
            await anext(half)
            stuck = asyncio.create_task(anext(half))  # a step is on its way while the router goes
            await asyncio.sleep(0.01)
            await before.close()
            await asyncio.gather(stuck, return_exceptions=True)
            after = Router(RouterOptions(), served.info, InlineDraftClient(SpeculatorPool(), 320), [served.target(0)])
            after.start()
            events = [event async for event in after.stream(job)]
            assert [token for event in events for token in event.token_ids] == offline(job).token_ids
            await after.close()


async def test_a_result_of_a_step_that_was_not_sent_is_no_reason_to_stop(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(1, "pld", max_tokens=100)
    async with serving() as served:
        events = served.router.stream(job)
        tokens = list((await anext(events)).token_ids)
        pipeline: Pipeline = served.router.lanes[0].connection.pipeline
        pipeline.send(Step(12345, []))  # not one of the router's numbers
        async for event in events:
            tokens += event.token_ids
        assert tokens == offline(job).token_ids


class RaisesLate(InlineDraftClient):
    """Drafts in an awaitable that fails."""

    async def _fail(self) -> Drafts:
        await asyncio.sleep(0)
        raise ConnectionError("the drafter is gone")

    def draft(self, draft_round: DraftRound) -> Drafts | Awaitable[Drafts]:
        return self._fail()


class DraftsNonsense(InlineDraftClient):
    """Drafts branches that are no trees."""

    def draft(self, draft_round: DraftRound) -> Drafts | Awaitable[Drafts]:
        return {seq: [Branch([5, 6], "nonsense", parents=[7, -3])] for seq in draft_round.budgets}


class DraftsAtRandomTimes(InlineDraftClient):
    """Right drafts, but late, and in any order."""

    async def _later(self, draft_round: DraftRound) -> Drafts:
        drafts = super().draft(draft_round)
        await asyncio.sleep(random.random() * 0.02)
        return drafts

    def draft(self, draft_round: DraftRound) -> Drafts | Awaitable[Drafts]:
        return self._later(draft_round)


@pytest.mark.parametrize("kind", [RaisesLate, DraftsNonsense, DraftsAtRandomTimes])
async def test_a_drafter_that_fails_or_dawdles_costs_no_text(
    kind: type[InlineDraftClient], serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, "pld", temperature=0.5) for number in range(4)]
    async with serving(2, draft_client=kind(SpeculatorPool(), 320)) as served:
        gone = asyncio.create_task(served.answer(make_job(9, "pld", max_tokens=300)))
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await asyncio.sleep(0.1)
        gone.cancel()
        served.stages.workers[0].close()
        served.replace()
        assert [a.token_ids for a in await asyncio.gather(*answers)] == [offline(job).token_ids for job in jobs]
        await served.settled()


async def test_closing_ends_live_streams_with_an_error_and_leaves_no_task(serving: Any, make_job: MakeJob) -> None:
    async with serving(2) as served:
        streams = [asyncio.create_task(served.answer(make_job(n, max_tokens=900, stop_ids=()))) for n in range(3)]
        await asyncio.sleep(0.05)  # of more than a second that these texts take
        await served.router.close()
        for outcome in await asyncio.gather(*streams, return_exceptions=True):
            assert isinstance(outcome, TargetLostError)
        with pytest.raises(TargetLostError, match="shutting down"):
            await served.answer(make_job(1))
        assert (await served.router.state())["speculator_states"] == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
