"""A router of another model takes a router's place: no text is of two models, and no prompt in ids of another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from deployments.options import RouterOptions
from deployments.router.draft_client import InlineDraftClient
from deployments.router.router import Router
from deployments.submission.messages import ModelCard
from deployments.submission.served_model import ServedModel
from deployments.submission.server import SubmissionServer
from engine.errors import ModelChangedError
from engine.events import StepEvent
from engine.loop import Completion
from engine.model.identity import ModelIdentity
from engine.request import Request
from engine.target.info import TargetInfo
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import Served
from tests.support.submission import Submitting, submitting, tokens

MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]
OURS = ModelIdentity(weights="a" * 32, tokenizer="t" * 32, numbers="float32")
OTHERS = [
    msgspec.structs.replace(OURS, weights="b" * 32),
    msgspec.structs.replace(OURS, tokenizer="u" * 32),
    msgspec.structs.replace(OURS, revision="c" * 40),
    msgspec.structs.replace(OURS, numbers="bfloat16+int8"),
]


def card(identity: ModelIdentity) -> ModelCard:
    return ModelCard(name="tiny", max_model_len=1024, vocab_size=320, identity=identity)


@dataclass
class Edge:
    """An ingress and the router behind it, which may be replaced."""

    served: Served
    pair: Submitting
    model: ServedModel

    def replace_router(self, identity: ModelIdentity) -> Callable[[], Any]:
        """A router that serves a target of this identity; call what is returned to end the old one."""
        old, server = self.served.router, self.pair.server
        info: TargetInfo = replace(self.served.info, identity=identity)
        drafts = InlineDraftClient(SpeculatorPool(), info.spec.vocab_size)
        self.served.router = Router(RouterOptions("tiny", max_wait=None), info, drafts, [self.served.target(0)])
        self.served.router.start()
        self.pair.server = SubmissionServer(self.served.router.stream, card=card(identity))

        async def end() -> None:
            server.cut()
            await server.close()
            await old.close()

        return end

    def request(self, job: Request) -> Request:
        """As the edge encodes it now."""
        return msgspec.structs.replace(job, model=self.model.card.identity.digest)


@pytest.fixture
async def edge(serving: Any, info: TargetInfo) -> AsyncIterator[Edge]:
    model = ServedModel(card(OURS))
    model.tokenizer = OURS.tokenizer
    async with (
        serving(target=replace(info, identity=OURS)) as served,
        submitting(lambda request: served.router.stream(request), model=model) as pair,
    ):
        pair.server._card = card(OURS)
        yield Edge(served, pair, model)


@asynccontextmanager
async def half_written(edge: Edge, job: Request) -> AsyncIterator[tuple[list[StepEvent], AsyncGenerator[StepEvent]]]:
    """The events of a stream that has begun, and the rest of it."""
    async with aclosing(edge.pair.channel.stream(edge.request(job))) as stream:
        yield [await anext(stream), await anext(stream)], stream


async def read(stream: AsyncGenerator[StepEvent], take: Callable[[StepEvent], None]) -> None:
    """The rest of a stream, event by event: those before an error were seen."""
    async for event in stream:
        take(event)


async def test_the_same_model_goes_on_behind_another_router(edge: Edge, make_job: MakeJob, offline: Offline) -> None:
    job = make_job(3, temperature=0.8, max_tokens=200, stop_ids=())
    async with half_written(edge, job) as (events, stream):
        await edge.replace_router(OURS)()
        events += [event async for event in stream]
    assert tokens(events) == offline(job).token_ids
    await edge.served.settled()


@pytest.mark.parametrize("identity", OTHERS, ids=lambda other: OURS.difference(other).split()[0])
async def test_a_text_that_one_model_began_is_ended_and_never_goes_on_with_another(
    identity: ModelIdentity, edge: Edge, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(3, temperature=0.8, max_tokens=200, stop_ids=())
    async with half_written(edge, job) as (events, stream):
        await edge.replace_router(identity)()
        with pytest.raises(ModelChangedError, match=r"served now|no longer served"):
            await read(stream, events.append)
    had = tokens(events)
    assert had == offline(job).token_ids[: len(had)]
    assert len(had) < 200


async def test_an_ingress_with_the_tokenizer_of_the_next_model_encodes_for_it(
    edge: Edge, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(2, max_tokens=10)
    early = edge.request(job)
    await edge.replace_router(OTHERS[0])()
    with pytest.raises(ModelChangedError):  # encoded before, with another model's limits and ends of text
        await edge.pair.answer(early)
    assert edge.model.card.identity == OTHERS[0]
    assert tokens(await edge.pair.answer(edge.request(job))) == offline(job).token_ids


async def test_an_ingress_learns_of_the_next_model_without_a_request(edge: Edge, make_job: MakeJob) -> None:
    await edge.pair.answer(edge.request(make_job(1, max_tokens=2)))
    await edge.replace_router(OTHERS[0])()
    async with asyncio.timeout(240):
        while edge.model.card.identity != OTHERS[0]:
            await edge.pair.channel.look(5.0)
            await asyncio.sleep(0.01)
    assert edge.model.trouble == ""


async def test_an_ingress_with_another_tokenizer_refuses_everything_until_it_fits_again(
    edge: Edge, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(2, max_tokens=10)
    await edge.pair.answer(edge.request(job))
    await edge.replace_router(OTHERS[1])()
    for _ in range(2):
        with pytest.raises(ModelChangedError, match="uuuuuuuuuuuu instead of tttttttttttt"):
            await edge.pair.answer(edge.request(job))
    with pytest.raises(ModelChangedError):
        await edge.pair.channel.look(5.0)
    assert edge.model.trouble
    assert edge.model.card.identity == OURS
    assert (await edge.served.router.state())["sessions"] == 0  # not one of them reached the model
    await edge.replace_router(OURS)()
    assert tokens(await edge.pair.answer(edge.request(job))) == offline(job).token_ids
    assert edge.model.trouble == ""
