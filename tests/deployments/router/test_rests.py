"""Requests that rest in the router: lost pipelines, lost or late actors and cancels lose no token and no rest's end."""

from __future__ import annotations

import asyncio

import pytest

from deployments.router.drafting import InlineDraftClient
from deployments.router.speculator_actors import ActorDraftClient
from engine.scheduling.drafting import DraftRound
from engine.scheduling.sequence import Sequence
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import RunningRequest, Serving, job_of, patient
from tests.deployments.router.router_fakes import FakeActor
from tests.deployments.slow_stage import GATE, Gated
from tests.support.resting import Resting
from tests.support.waiting import LIMIT_S, wait_until_async

VOCAB = 320
LONG = {"max_tokens": 300, "stop_ids": ()}


def pool_of(speculator: Resting) -> SpeculatorPool:
    return SpeculatorPool(extra={"resting": lambda _: speculator})


def inline_client(speculator: Resting) -> InlineDraftClient:
    return InlineDraftClient(pool_of(speculator), VOCAB)


def actor_of(speculator: Resting) -> FakeActor:
    actor = FakeActor()
    assert actor.actor is not None
    actor.actor._pool = pool_of(speculator)
    return actor


def actor_client(actor: FakeActor, timeout: float = LIMIT_S) -> ActorDraftClient:
    return ActorDraftClient([actor], pool_of(Resting([0])), VOCAB, timeout)


def check_learnt(speculator: Resting, answers: list[RunningRequest]) -> None:
    """Every token but those of the last step was reported, in order."""
    for seq, answer in enumerate(answers):
        learnt, text = speculator.learnt[seq], answer.token_ids
        assert learnt == text[: len(learnt)]
        assert len(text) - len(learnt) <= 3


@pytest.mark.parametrize(("method", "is_called"), [("pld", False), ("resting", True)])
async def test_an_actor_is_called_after_the_send_only_for_methods_that_settle(method: str, is_called: bool) -> None:
    speculator = Resting([0])
    client = actor_client(actor_of(speculator))
    sequence = Sequence.of(0, job_of(0, method))
    client.begin(sequence)
    draft_round = DraftRound(budgets={0: 8}, drafting=[sequence])
    await client.draft(draft_round)
    assert await client.settle(draft_round, 0.5) == set()
    assert speculator.seconds == ([0.5] if is_called else [])
    client.end(sequence)


@pytest.mark.parametrize("in_actor", [False, True])
async def test_every_token_of_a_rest_is_reported_and_the_request_is_asked_again(
    serving: Serving, in_actor: bool
) -> None:
    speculator = Resting([4, 0, 7])
    client = actor_client(actor_of(speculator)) if in_actor else inline_client(speculator)
    async with serving(2, draft_client=client) as served:
        jobs = [job_of(n, "resting", temperature=0.7 * (n % 2), stop_ids=()) for n in range(6)]
        answers = await served.check(*jobs)
    check_learnt(speculator, answers)
    assert all(len(asked) >= 6 for asked in speculator.asked.values())
    assert all(answer.stats.decisions["off:rests"] > 10 for answer in answers)


async def test_a_request_rests_on_when_its_pipeline_is_lost_and_in_another_lane(serving: Serving) -> None:
    speculator = Resting([30])
    options = patient(failover=0.0)
    async with serving(kinds=[Gated], draft_client=inline_client(speculator), n_lanes=2, options=options) as served:
        await served.up()
        answers = [served.begin(job_of(n, "resting", **LONG)) for n in range(4)]
        await wait_until_async(lambda: all(len(answer.events) > 40 for answer in answers))
        n_asked = [len(speculator.asked[seq]) for seq in range(4)]
        await served.lose(0)
        await served.compare(answers)
        check_learnt(speculator, answers)
        assert all(len(speculator.asked[seq]) > n for seq, n in enumerate(n_asked))


async def test_a_request_that_is_cancelled_at_rest_leaves_nothing(serving: Serving) -> None:
    speculator = Resting([10**6])
    async with serving(kinds=[Gated], draft_client=inline_client(speculator)) as served:
        stays, goes = (served.begin(job_of(n, "resting", **LONG)) for n in range(2))
        await wait_until_async(lambda: len(goes.events) > 10)
        goes.cancel()
        await served.compare([stays])
        assert len(speculator.asked[0]) == 1
        check_learnt(speculator, [stays])
        await asyncio.gather(goes, return_exceptions=True)
        await served.settled()


@pytest.mark.parametrize("hangs", [False, True])
async def test_the_rests_of_a_lost_or_late_actor_end(serving: Serving, hangs: bool) -> None:
    actor = actor_of(Resting([10**6]))
    async with serving(kinds=[Gated], draft_client=actor_client(actor, 0.05 if hangs else LIMIT_S)) as served:
        GATE.close(after=20)
        answer = served.begin(job_of(0, "resting", **LONG))
        await wait_until_async(lambda: len(answer.events) > 10)
        actor.actor = None
        if hangs:
            actor.runs.clear()
        GATE.close(after=60)
        await wait_until_async(lambda: len(answer.events) > 60)
        fresh = Resting([3])
        actor.actor = actor_of(fresh).actor
        actor.runs.set()
        GATE.open()
        await served.compare([answer])
        assert len(fresh.asked[0]) > 10
        check_learnt(fresh, [answer])
