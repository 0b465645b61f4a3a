"""A router of another model replaces a router: no text is of two models, and no prompt in the ids of another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

import msgspec
import pytest

from deployments.submission.client import ServedModel
from deployments.submission.messages import ModelCard
from deployments.submission.server import SubmissionServer
from engine.errors import ModelChangedError
from engine.events import StepEvent
from engine.model.identity import ModelIdentity
from engine.request import Request
from engine.target_model.info import TargetInfo
from tests.deployments.conftest import ServedPipelines, Serving, job_of
from tests.deployments.slow_stage import GATE, Gated
from tests.support.submission import Submitting, submitting, tokens
from tests.support.waiting import LIMIT_S

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
class IngressAndRouter:
    """An ingress and its router, which may be replaced."""

    served: ServedPipelines
    pair: Submitting
    model: ServedModel

    async def replace_router(self, identity: ModelIdentity) -> None:
        """Start a router that serves a target of this identity, and end the old one."""
        old, server = self.served.router, self.pair.server
        self.served.router = self.served.another_router(info=replace(self.served.info, identity=identity))
        self.served.router.start()
        self.pair.server = SubmissionServer(self.served.router.stream, card=card(identity))
        server.disconnect()
        await server.close()
        await old.close()

    def request(self, job: Request) -> Request:
        """The job as the edge encodes it now."""
        return msgspec.structs.replace(job, model=self.model.card.identity.digest)


@pytest.fixture
async def edge(serving: Serving, info: TargetInfo) -> AsyncIterator[IngressAndRouter]:
    model = ServedModel(card(OURS))
    model.tokenizer = OURS.tokenizer
    async with (
        serving(1, [Gated], target=replace(info, identity=OURS)) as served,
        submitting(lambda request: served.router.stream(request), model=model) as pair,
    ):
        pair.server._card = card(OURS)
        yield IngressAndRouter(served, pair, model)


async def read(stream: AsyncIterator[StepEvent], events: list[StepEvent]) -> None:
    async for event in stream:
        events += [event]


@pytest.mark.parametrize("identity", [OURS, *OTHERS], ids=lambda other: (OURS.difference(other) or "same").split()[0])
async def test_a_text_continues_at_the_next_router_only_with_the_same_model(
    identity: ModelIdentity, edge: IngressAndRouter
) -> None:
    job = job_of(3, temperature=0.8, max_tokens=100, stop_ids=())
    text = edge.served.offline(job).token_ids
    GATE.close(after=8)  # the text cannot end before the gate opens
    async with aclosing(edge.pair.channel.stream(edge.request(job))) as stream:
        events = [await anext(stream), await anext(stream)]
        await edge.replace_router(identity)
        GATE.open()
        if identity == OURS:
            events += [event async for event in stream]
            assert tokens(events) == text
            return
        with pytest.raises(ModelChangedError, match=r"served now|no longer served"):
            await read(stream, events)
    assert tokens(events) == text[: len(tokens(events))]
    assert len(tokens(events)) < len(text)


async def test_an_ingress_with_the_tokenizer_of_the_next_model_encodes_for_it(edge: IngressAndRouter) -> None:
    job = job_of(2, max_tokens=10)
    early = edge.request(job)
    await edge.replace_router(OTHERS[0])
    with pytest.raises(ModelChangedError):  # encoded before, with another model's limits and ends of text
        await edge.pair.answer(early)
    assert edge.model.card.identity == OTHERS[0]
    assert tokens(await edge.pair.answer(edge.request(job))) == edge.served.offline(job).token_ids


async def test_an_ingress_with_another_tokenizer_refuses_everything_until_it_fits_again(edge: IngressAndRouter) -> None:
    job = job_of(2, max_tokens=10)
    await edge.pair.answer(edge.request(job))
    await edge.replace_router(OTHERS[1])
    for _ in range(2):
        with pytest.raises(ModelChangedError, match="uuuuuuuuuuuu instead of tttttttttttt"):
            await edge.pair.answer(edge.request(job))
    with pytest.raises(ModelChangedError):
        await edge.pair.channel.check_model(LIMIT_S)
    assert edge.model.mismatch
    assert edge.model.card.identity == OURS
    assert (await edge.served.router.state())["sessions"] == 0  # not one of them reached the model
    await edge.replace_router(OURS)
    assert tokens(await edge.pair.answer(edge.request(job))) == edge.served.offline(job).token_ids
    assert edge.model.mismatch == ""
