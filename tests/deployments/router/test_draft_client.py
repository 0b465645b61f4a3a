"""Speculators in real Ray actors: they may die or hang at any time, and cost drafts, never a text."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from msgspec.structs import replace

from deployments.router.draft_client import ActorDraftClient
from deployments.router.speculator_actor import SpeculatorActor, start_speculators
from engine.loop import Completion
from engine.protocol import Branch, Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import DraftRound
from engine.scheduling.sequence import Sequence
from engine.tree import EMPTY_TREE
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from tests.support.slow_stage import Slow

VOCAB = 320
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class TestableActor(SpeculatorActor):
    """A speculator actor that says who it is, and hangs when told to."""

    __test__ = False

    def pid(self) -> int:
        return os.getpid()

    def advance(self, outcomes: Items[tuple[int, Outcome]], budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        time.sleep(self._hang)
        self._hang = 0.0
        return super().advance(outcomes, budgets)

    def hang_once(self, seconds: float) -> None:
        self._hang = seconds

    def __init__(self, options: SpeculatorOptions) -> None:
        super().__init__(options)
        self._hang = 0.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def actors(cluster: None) -> Iterator[list[Any]]:
    remote = ray.remote(TestableActor)
    made = [remote.options(num_cpus=0.1, max_restarts=-1).remote(SpeculatorOptions()) for _ in range(2)]
    ray.get([actor.pid.remote() for actor in made])
    yield made
    for actor in made:
        ray.kill(actor)


@pytest.fixture
def drafting(serving: Any, actors: list[Any]) -> Any:
    """``async with drafting(timeout=1.0) as (served, draft_client)``: a router that drafts in the actors."""

    @asynccontextmanager
    async def serve(timeout: float = 2.0, **limits: Any) -> AsyncIterator[tuple[Any, ActorDraftClient]]:
        draft_client = ActorDraftClient(actors, SpeculatorPool(), VOCAB, timeout)
        async with serving(draft_client=draft_client, **limits) as served:
            yield served, draft_client

    return serve


def looping(make_job: MakeJob, number: int, n_tokens: int = 400) -> Request:
    """A job whose answer prompt lookup can guess: it says one token again and again."""
    return make_job(number, "pld", max_tokens=n_tokens, logit_bias={7: 100.0})


async def pid_of(actor: Any) -> int:
    """Process of an actor, once it (or its next incarnation) answers."""
    deadline = time.monotonic() + 240
    while True:
        try:
            return int(await actor.pid.remote())
        except ray.exceptions.RayError:
            assert time.monotonic() < deadline, "the actor does not come back"
            await asyncio.sleep(0.05)


async def test_texts_and_figures_are_those_of_speculators_in_the_routers_own_process(
    drafting: Any, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    """Of requests whose scopes differ: what claims came true is shared in one, in the order in which requests run."""
    methods = ("pld", "spectra-core", "pld+spectra-core", "autoregressive")
    made = [make_job(number, methods[number % 4], temperature=0.7 * (number % 2)) for number in range(8)]
    jobs = [replace(job, scope=str(number)) for number, job in enumerate(made)]
    async with serving() as inline:
        expected = [await inline.answer(job) for job in jobs]
    async with drafting() as (served, _):
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        await served.settled()
    assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
    sources = [answer.events[-1].stats.by_source for answer in answers]
    assert sources == [answer.events[-1].stats.by_source for answer in expected]


async def test_cancelled_requests_leave_no_state_in_the_actors(drafting: Any, make_job: MakeJob) -> None:
    async with drafting(n_stages=2) as (served, _):
        for _ in range(40):
            going = [
                asyncio.create_task(served.answer(make_job(n, "pld", max_tokens=900, stop_ids=()))) for n in range(3)
            ]
            await asyncio.sleep(0.02)
            for task in going:
                task.cancel()
            ended = await asyncio.gather(*going, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        assert (await served.settled())["speculator_states"] == 0


async def test_a_request_cancelled_between_its_step_and_its_draft_harms_no_other(
    drafting: Any, make_job: MakeJob
) -> None:
    def request(seq: int) -> Sequence:
        return Sequence.of(seq, replace(make_job(seq, "pld"), emitted=[5]))

    stays, goes = request(0), request(2)  # at home on the same actor
    async with drafting() as (_, draft_client):
        draft_client.begin(stays)
        draft_client.begin(goes)
        draft_round = DraftRound(budgets={0: 8, 2: 8}, drafting=[stays, goes])
        drafts = draft_client.draft(draft_round)
        draft_client.end(goes)
        assert set(await drafts) == {0}
        draft_client.end(stays)
        assert await draft_client.n_live() == 0


async def test_killed_actors_cost_no_text_and_draft_again_when_they_are_back(
    drafting: Any, actors: list[Any], make_job: MakeJob, offline: Offline
) -> None:
    jobs = [looping(make_job, number, 900) for number in range(2)] + [  # they outlast the start of two processes
        make_job(number, "pld+spectra-core", temperature=0.8, max_tokens=300) for number in range(2, 4)
    ]
    async with drafting(kinds=[Slow]) as (served, _):
        streams = [served.router.stream(job) for job in jobs]
        tokens = [list((await anext(stream)).token_ids) for stream in streams]
        pids = [await pid_of(actor) for actor in actors]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for i, stream in enumerate(streams[:2]):  # a few steps without drafts
            for _ in range(3):
                tokens[i] += (await anext(stream)).token_ids
        assert set(pids).isdisjoint([await pid_of(actor) for actor in actors])
        late: list[dict[str, tuple[int, int]]] = []
        for i, stream in enumerate(streams):
            async for event in stream:
                tokens[i] += event.token_ids
                if i < 2:
                    late.append(event.drafts)
        assert tokens == [offline(job).token_ids for job in jobs]
        accepted = sum(drafts["pld"].accepted for drafts in late if "pld" in drafts)
        assert accepted > 300  # begun anew, with all text as context
        await served.settled()


async def test_an_actor_that_hangs_is_left_alone_until_it_answers_and_then_drafts_again(
    drafting: Any, actors: list[Any], make_job: MakeJob, offline: Offline
) -> None:
    job = looping(make_job, 0, 900)
    async with drafting(timeout=0.3, kinds=[Slow]) as (served, _):
        stream = served.router.stream(job)
        tokens = list((await anext(stream)).token_ids)
        await actors[0].hang_once.remote(0.8)  # 0.3 s of it a step waits; the text outlasts the rest
        began = time.monotonic()
        alone = 0
        late = 0
        async for event in stream:
            tokens += event.token_ids
            alone += not event.drafts
            late += event.drafts["pld"].accepted if alone > 2 and "pld" in event.drafts else 0
        assert tokens == offline(job).token_ids
        assert alone > 5  # steps went on without it, not one per timeout
        assert late > 100
        assert time.monotonic() - began < 60
        await served.settled()


async def test_health_is_not_held_up_by_an_actor_that_hangs_or_is_dead(
    drafting: Any, actors: list[Any], make_job: MakeJob
) -> None:
    async with drafting() as (served, _):
        await actors[0].hang_once.remote(3.0)
        hung = actors[0].advance.remote([], {})
        psutil.Process(await pid_of(actors[1])).kill()
        began = time.monotonic()
        assert (await served.router.state())["speculator_states"] == 0
        assert time.monotonic() - began < 2.5
        await hung


async def test_start_speculators_makes_actors_that_draft(cluster: None) -> None:
    [actor] = start_speculators(1, SpeculatorOptions())
    assert await actor.n_live.remote() == 0
    ray.kill(actor)


class Handle:
    """An actor in this process."""

    def __init__(self, actor: SpeculatorActor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)

        async def answer(*arguments: Any) -> Any:
            return method(*arguments)

        def remote(*arguments: Any) -> Any:
            return asyncio.ensure_future(answer(*arguments))

        return SimpleNamespace(remote=remote)


async def test_a_request_that_begins_anew_is_told_what_the_target_said_behind_its_text() -> None:
    """The new actor drafts as one that was told of the text when it was read."""
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(3, 99, 40).tolist(), [7, 8, 9]
    ids = np.array([rng.choice(VOCAB, 16, replace=False) for _ in range(42)], np.int32)
    logprobs = np.sort(np.log(rng.dirichlet(np.ones(20), 42)[:, :16]).astype(np.float32))[:, ::-1].copy()
    needs = SpeculatorPool().needs("token-recycling")
    params = SamplingParams(max_tokens=20)
    sequence = Sequence.of(0, Request(prompt, params, "token-recycling", 16, emitted=output), needs)
    sequence.prompt_top_ids.append(ids[:40], logprobs[:40])
    sequence.prompt_top_ids.append(ids[40:], logprobs[40:])
    wanted = SpeculatorPool()
    wanted.begin(0, sequence.request, VOCAB)
    told = Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=logprobs)
    [expected] = wanted.advance([(0, told)], {0: 16})[0]
    handle = Handle(SpeculatorActor(SpeculatorOptions()))
    draft_client = ActorDraftClient([handle], SpeculatorPool(), VOCAB, 30.0)
    draft_client.begin(sequence)
    handle._actor = SpeculatorActor(SpeculatorOptions())  # the former is gone before it drafted
    draft_round = DraftRound(budgets={0: 16}, drafting=[sequence])
    assert await draft_client.draft(draft_round) == {}  # the new one does not know the request yet
    [branch] = (await draft_client.draft(draft_round))[0]
    assert branch.tokens == expected.tokens
    assert len(branch.tokens) == 16
