"""Speculators in actors: they may die or hang at any time, and cost drafts, never a text."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from msgspec.structs import replace

from deployments.router import speculator_actors as module
from deployments.router.speculator_actors import SpeculatorActor
from engine.protocol import Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import DraftRound
from engine.scheduling.sequence import Sequence
from engine.tree import EMPTY_TREE
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import METHODS, RunningRequest, Serving, job_of
from tests.deployments.router.router_fakes import FakeActor, client_of
from tests.deployments.slow_stage import GATE, Gated
from tests.support.waiting import wait_until_async

VOCAB = 320


async def test_speculators_in_actors_draft_as_in_the_routers_own_process(serving: Serving) -> None:
    """Requests of one scope share statistics in the order in which they run, so these have scopes of their own."""
    jobs = [replace(job_of(n, METHODS[n % 4], temperature=0.7 * (n % 2)), scope=str(n)) for n in range(8)]
    async with serving() as inline:
        expected = [(await inline.check(job))[0].stats.by_source for job in jobs]
    async with serving(draft_client=client_of(FakeActor(), FakeActor())) as served:
        answers = await served.check(*jobs)
    assert [answer.stats.by_source for answer in answers] == expected


async def test_a_request_cancelled_between_its_step_and_its_draft_harms_no_other() -> None:
    stays, goes = (Sequence.of(seq, replace(job_of(seq, "pld"), emitted=[5])) for seq in (0, 1))
    draft_client = client_of(FakeActor())
    draft_client.begin(stays)
    draft_client.begin(goes)
    drafts = draft_client.draft(DraftRound(budgets={0: 8, 1: 8}, drafting=[stays, goes]))
    draft_client.end(goes)
    assert set(await drafts) == {0}
    draft_client.end(stays)
    assert await draft_client.n_live() == 0


def n_accepted(answer: RunningRequest, since: int) -> int:
    """Tokens accepted from drafts of prompt lookup after the first events."""
    drafts = [event.drafts or {} for event in answer.events[since:]]
    return sum(one["pld"].accepted for one in drafts if "pld" in one)


async def test_a_dead_actor_costs_no_text_and_drafts_again_when_it_is_back(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs: ``tests/deployments/cluster/test_serve_replicas.py``."""
    monkeypatch.setattr(module, "COUNT_S", 0.01)
    lost = FakeActor()
    draft_client = client_of(lost, FakeActor())
    async with serving(1, [Gated], draft_client) as served:
        GATE.close(after=6)
        looping = {"max_tokens": 300, "stop_ids": (), "logit_bias": {7: 100.0}}  # prompt lookup can guess the text
        answers = [served.begin(job_of(number, "pld", **looping)) for number in range(2)]
        await wait_until_async(lambda: all(len(answer.events) >= 3 for answer in answers))
        assert n_accepted(answers[0], 0) > 0
        lost.actor = None
        n_before = len(answers[0].events)
        GATE.close(after=20)
        await wait_until_async(lambda: len(answers[0].events) > n_before + 5)
        assert (await served.router.state())["speculator_states"] <= 1  # of the other actor
        assert n_accepted(answers[0], n_before + 3) == 0
        lost.actor = SpeculatorActor(SpeculatorOptions())
        n_before = len(answers[0].events)
        GATE.open()
        await served.compare(answers)
        assert n_accepted(answers[0], n_before) > 10


async def test_a_request_that_begins_anew_gets_the_logprobs_of_its_text() -> None:
    """The new actor drafts like one that got them when the text was computed."""
    rng = np.random.default_rng(0)
    ids = np.array([rng.choice(VOCAB, 16, replace=False) for _ in range(42)], np.int32)
    logprobs = np.sort(np.log(rng.dirichlet(np.ones(20), 42)[:, :16]).astype(np.float32))[:, ::-1].copy()
    prompt, params = rng.integers(3, 99, 40).tolist(), SamplingParams(max_tokens=20)
    request = Request(prompt, params, "token-recycling", 16, emitted=[7, 8, 9])
    sequence = Sequence.of(0, request, SpeculatorPool().needs("token-recycling"))
    sequence.prompt_top_ids.append(ids, logprobs)
    reference = SpeculatorPool()
    reference.begin(0, sequence.request, VOCAB)
    outcome = Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=logprobs)
    [expected] = reference.advance([(0, outcome)], {0: 16})[0]
    actor = FakeActor()
    draft_client = client_of(actor)
    draft_client.begin(sequence)
    await asyncio.sleep(0)
    actor.actor = SpeculatorActor(SpeculatorOptions())
    draft_round = DraftRound(budgets={0: 16}, drafting=[sequence])
    assert await draft_client.draft(draft_round) == {}  # the new one does not know the request yet
    [branch] = (await draft_client.draft(draft_round))[0]
    assert branch.tokens == expected.tokens
    assert len(branch.tokens) == 16
