"""A failure around the router reaches only the requests that it happened to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest
import torch

from deployments.router.drafting import Drafts, InlineDraftClient
from engine.errors import StepFailedError, TargetLostError
from engine.grammar.grammar import Grammar, Thought
from engine.protocol import Branch
from engine.request import Request
from engine.scheduling.drafting import DraftRound
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import METHODS, Serving, job_of
from tests.deployments.slow_stage import GATE, Gated
from tests.support.grammars import PERSON, of_schema
from tests.support.waiting import wait_until_async

POISON = 311  # a prompt with this token makes the stages below fail


def is_poisoned(step: Step) -> bool:
    return any(POISON in work.tokens and work.tree is None for work in step.work)


class FailsBefore(Gated):
    """Raises before it has looked at a poisoned step."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if is_poisoned(step):
            raise RuntimeError("poisoned")
        return super().forward(step, incoming)


class FailsAfter(Gated):
    """Raises when half of its work on a poisoned step is done."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        activations = super().forward(step, incoming)
        if is_poisoned(step):
            raise MemoryError("poisoned")
        return activations


class LosesItsDevice(Gated):
    """Raises the error of a GPU that has failed for good."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if is_poisoned(step):
            raise torch.AcceleratorError("poisoned")
        return super().forward(step, incoming)


def poisoned(job: Request, at: int | None = None) -> Request:
    at = len(job.prompt) if at is None else at
    return Request([*job.prompt[:at], POISON, *job.prompt[at:]], job.params, job.method)


async def test_cancelled_requests_leave_nothing_and_do_not_change_a_survivor(serving: Serving) -> None:
    chance = random.Random(2)

    async def go_away(number: int) -> None:
        sampling = {"temperature": chance.choice((0.0, 0.9)), "max_tokens": 900, "stop_ids": ()}
        job = job_of(number, METHODS[number % 4], **sampling)
        n_events = chance.randrange(4)
        if number % 2:  # the consumer closes the iterator after some events, or before the first
            events = served.router.stream(job)
            for _ in range(n_events):
                await anext(events)
            await events.aclose()
        else:
            answer = served.begin(job)
            await wait_until_async(lambda: len(answer.events) >= n_events)
            answer.cancel()

    async with serving(2, max_sequences=16) as served:
        survivor = served.begin(job_of(1000, "pld+spectra-core", temperature=0.8, max_tokens=200))
        await asyncio.gather(*(go_away(number) for number in range(60)))
        await served.compare([survivor])
        await served.settled()
        await served.check(job_of(1001, "pld"))


@pytest.mark.parametrize(
    ("n_stages", "place", "kind", "n_prompt", "at"),
    [
        (1, 0, FailsAfter, 20, 20),
        (2, 0, FailsBefore, 150, 140),
        (2, 1, FailsAfter, 150, 3),
        (4, 1, FailsBefore, 150, 70),
    ],
)
async def test_a_step_or_chunk_that_fails_ends_only_its_own_request(
    n_stages: int, place: int, kind: type[Stage], n_prompt: int, at: int, serving: Serving
) -> None:
    kinds = [kind if i == place else Stage for i in range(n_stages)]
    bystanders = [job_of(i, METHODS[i % 4], n_prompt=20 * i, max_tokens=20) for i in range(1, 5)]
    async with serving(n_stages, kinds, prefill_chunk=16) as served:
        for number in range(10, 12):  # without other requests, the poisoned step holds no other sequence
            with pytest.raises(StepFailedError, match="poisoned"):
                await served.answer(poisoned(job_of(number, "pld", n_prompt=n_prompt), at))
            await served.check(*bystanders)
        assert (await served.settled())["pipelines_lost"] == 0


async def test_exactly_the_sequences_of_a_failed_step_fail(serving: Serving) -> None:
    failed: set[int] = set()

    class Records(FailsBefore):
        def forward(self, step: Step, incoming: Activations | None) -> Activations:
            if is_poisoned(step):
                failed.update(work.seq for work in step.work)
            return super().forward(step, incoming)

    async with serving(1, [Records], prefill_chunk=8) as served:
        GATE.close(after=5)
        answers = [served.begin(job_of(number, "pld", max_tokens=60)) for number in range(6)]
        await wait_until_async(lambda: bool(answers[0].events))
        answers.append(served.begin(poisoned(job_of(10))))  # sequence 6
        await asyncio.sleep(0)
        GATE.open()
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        for seq, (answer, outcome) in enumerate(zip(answers, outcomes, strict=True)):
            assert isinstance(outcome, StepFailedError) == (seq in failed)
            assert seq in failed or answer.token_ids == served.offline(answer.job).token_ids
        assert 6 in failed


@pytest.mark.parametrize(
    ("n_stages", "dies", "sampling"), [(1, 0, {}), (2, 0, {"temperature": 0.8}), (3, 1, {"temperature": 1})]
)
async def test_streams_continue_with_identical_output_on_a_fresh_pipeline(
    n_stages: int, dies: int, sampling: dict[str, Any], serving: Serving
) -> None:
    jobs = [job_of(number, METHODS[number % 4], max_tokens=70, stop_ids=(), **sampling) for number in range(5)]
    jobs.append(
        job_of(5, "pld", grammar=Grammar(of_schema(PERSON).source, thought=Thought("e")), max_tokens=50, **sampling)
    )
    async with serving(n_stages, [Gated] * n_stages) as served:
        GATE.close(after=5 * n_stages)
        answers = [served.begin(job) for job in jobs]
        for n_seen in (2, 4):
            await wait_until_async(lambda n_seen=n_seen: len(answers[0].events) >= n_seen)  # type: ignore[misc]
            await served.lose(stage=dies)
            GATE.close(after=8 * n_stages)
            served.replace([Gated] * n_stages)
            await served.up()
        GATE.open()
        await served.compare(answers)
        assert all(answer.stats.preemptions > 0 for answer in answers)
        assert (await served.settled())["pipelines_lost"] == 2


async def test_a_device_that_fails_ends_its_stage_and_the_router_moves_on(serving: Serving) -> None:
    async with serving(1, [LosesItsDevice]) as served:
        GATE.close(after=3)
        running = served.begin(job_of(1, "pld", max_tokens=200))
        await wait_until_async(lambda: bool(running.events))
        fatal = served.begin(poisoned(job_of(2)))
        await asyncio.sleep(0)
        GATE.open()
        broken = served.stages.workers[0]
        await wait_until_async(lambda: not broken.is_alive)
        served.replace()
        await served.compare([running, fatal])  # the fresh device does not fail


async def test_a_cancelled_prompt_keeps_its_blocks_until_its_last_chunk_is_answered(serving: Serving) -> None:
    async with serving(4, [Gated] * 4, prefill_chunk=16) as served:
        GATE.close()
        gone = served.begin(job_of(1, n_prompt=150))
        lane = served.router.lanes[0]
        await wait_until_async(lambda: lane.n_in_flight == 4)  # a chunk for every stage
        staying = served.begin(job_of(2, "pld", n_prompt=150, max_tokens=20))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert lane.scheduler.blocks.n_free == served.info.n_blocks - 10  # of 16 tokens, for 150
        GATE.open()
        await served.compare([staying])


@pytest.mark.parametrize("broken", [b"\xc1", b"\x80", Step(12345, [])], ids=["not msgpack", "no step", "unknown step"])
async def test_a_wrong_frame_costs_a_reconnection_and_no_text(broken: bytes | Step, serving: Serving) -> None:
    async with serving(2, [Gated, Gated]) as served:
        GATE.close(after=6)
        answer = served.begin(job_of(1, "pld", temperature=0.8, max_tokens=150))
        await wait_until_async(lambda: bool(answer.events))
        pipeline = served.router.lanes[0].connection.pipeline
        assert pipeline is not None
        if isinstance(broken, Step):
            pipeline.send(broken)
        else:
            pipeline._steps.send(broken)
        GATE.open()
        await served.compare([answer])
        assert (await served.settled())["pipelines_lost"] == 1


class DraftsLate(InlineDraftClient):
    """Drafts some turns of the event loop later, or fails then, or drafts no trees."""

    chance, fault = random.Random(1), ""

    async def _later(self, draft_round: DraftRound) -> Drafts:
        drafts = super().draft(draft_round)
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)
        if self.fault == "dead":
            raise ConnectionError("the drafter is gone")
        if self.fault == "nonsense":
            return {seq: [Branch([5, 6], "nonsense", parents=[7, -3])] for seq in draft_round.budgets}
        return drafts

    def draft(self, draft_round: DraftRound) -> Drafts | Awaitable[Drafts]:
        return self._later(draft_round)


@pytest.mark.parametrize("fault", ["", "dead", "nonsense"])
async def test_a_drafter_that_fails_or_is_late_costs_no_text(fault: str, serving: Serving) -> None:
    draft_client = DraftsLate(SpeculatorPool(), 320)
    draft_client.fault = fault
    async with serving(2, [Gated] * 2, draft_client) as served:
        GATE.close(after=20)
        gone = served.begin(job_of(9, "pld", max_tokens=300))
        answers = [served.begin(job_of(number, "pld", temperature=0.5)) for number in range(4)]
        await wait_until_async(lambda: all(answer.events for answer in (gone, *answers)))
        gone.cancel()
        await served.lose(stage=0)
        GATE.open()
        served.replace()
        await served.compare(answers)


async def test_closing_fails_live_streams_and_leaves_no_task(serving: Serving) -> None:
    async with serving(2, [Gated] * 2) as served:
        GATE.close(after=10)
        answers = [served.begin(job_of(n, max_tokens=900, stop_ids=())) for n in range(3)]
        await wait_until_async(lambda: bool(answers[0].events))
        await served.router.close()
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            assert isinstance(outcome, TargetLostError)
        with pytest.raises(TargetLostError, match="shutting down"):
            await served.answer(job_of(1))
        assert (await served.router.state())["speculator_states"] == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
