"""An ingress's channel to a router, both in the test's event loop, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from deployments.channels.async_channel import AsyncChannel
from deployments.submission.client import ServedModel, SubmissionClient
from deployments.submission.protocol import SUBMIT, Attachment
from deployments.submission.server import Problem, RunRequest, SubmissionServer
from engine.events import RequestStats, SourceCounts, StepEvent
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.support.waiting import LIMIT_S

REQUEST = Request([1, 2, 3], SamplingParams(max_tokens=5, seed=1))


@dataclass
class Submitting:
    """An ingress's channel and the router's server, which may be replaced."""

    server: SubmissionServer
    channel: SubmissionClient
    attached: int = 0

    @property
    def n_connected(self) -> int:
        return len(self.server._connections)

    async def attach(self) -> Attachment:
        self.attached += 1
        return await self.server.attachment()

    async def answer(self, request: Request) -> list[StepEvent]:
        return [event async for event in self.channel.stream(request)]

    async def peer(self) -> AsyncChannel:
        """Another ingress's bare connection."""
        attachment = await self.server.attachment()
        return await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT)


@asynccontextmanager
async def submitting(
    run: RunRequest,
    beat: float = LIMIT_S,
    patience: float = LIMIT_S,
    problem: Problem = str,
    model: ServedModel | None = None,
) -> AsyncIterator[Submitting]:
    """``async with submitting(router.stream) as pair: await pair.answer(request)``."""

    async def attach() -> Attachment:
        return await pair.attach()

    pair = Submitting(SubmissionServer(run, problem, beat), SubmissionClient(attach, patience, beat, model=model))
    try:
        yield pair
    finally:
        await pair.server.close()
        pair.channel.close()


def tokens(events: list[StepEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def check_figures(events: list[StepEvent], n_prompt: int) -> RequestStats:
    """The contract of a request's figures, whichever routers counted them."""
    stats = events[-1].stats
    assert stats is not None
    assert [event.stats for event in events[:-1]] == [None] * (len(events) - 1)
    assert stats.prompt_tokens == n_prompt
    assert stats.step_tokens == [len(event.token_ids) for event in events[1:]]
    assert stats.target_forwards == len(stats.step_tokens)
    assert len(tokens(events)) == 1 + sum(stats.step_tokens)
    sums: dict[str, SourceCounts] = {}
    for event in events[1:]:
        for name, counts in (event.drafts or {}).items():
            sums[name] = counts.plus(sums[name]) if name in sums else counts
    assert stats.by_source == sums
    assert sum(stats.accepted_steps) == stats.target_forwards
    assert sum(j * n for j, n in enumerate(stats.accepted_steps)) == stats.accepted_tokens
    assert min(stats.queue_seconds, stats.prefill_seconds, stats.decode_seconds) >= 0
    assert stats.drafted_tokens == sum(counts.drafted for counts in sums.values())
    assert stats.accepted_tokens == sum(counts.accepted for counts in sums.values())
    return stats


class EndlessRequests:
    """Runs requests that never end; counts those that are alive."""

    def __init__(self, n_tokens: int = 1, pause: float = 0.001) -> None:
        self.alive = 0
        self._event = StepEvent(token_ids=[7] * n_tokens)
        self._pause = pause  # seconds

    async def run(self, request: Request) -> AsyncGenerator[StepEvent, None]:
        self.alive += 1
        try:
            while True:
                yield self._event
                await asyncio.sleep(self._pause)
        finally:
            self.alive -= 1


async def count_prompt(request: Request) -> AsyncGenerator[StepEvent, None]:
    yield StepEvent(token_ids=[len(request.prompt)], finish_reason="stop")
