"""An ingress's channel to a router, both in the test's event loop, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from deployments.submission.client import SubmissionChannel
from deployments.submission.protocol import BEAT_S, Attachment
from deployments.submission.served_model import ServedModel
from deployments.submission.server import Problem, RunRequest, SubmissionServer
from engine.errors import TargetLostError
from engine.events import RequestStats, SourceCounts, StepEvent
from engine.request import Request


@dataclass
class Submitting:
    """The router's end may be replaced, as Serve does."""

    server: SubmissionServer
    channel: SubmissionChannel
    attached: int = 0

    @property
    def n_connected(self) -> int:
        """Ingresses that the server serves."""
        return len(self.server._connections)

    async def attach(self) -> Attachment:
        self.attached += 1
        return await self.server.attachment()

    async def answer(self, request: Request) -> list[StepEvent]:
        return [event async for event in self.channel.stream(request)]


@asynccontextmanager
async def submitting(
    run: RunRequest,
    beat: float = BEAT_S,
    patience: float = 30.0,
    problem: Problem = str,
    model: ServedModel | None = None,
) -> AsyncIterator[Submitting]:
    """``async with submitting(router.stream) as pair: await pair.answer(request)``."""

    async def attach() -> Attachment:
        return await pair.attach()

    pair = Submitting(SubmissionServer(run, problem, beat), SubmissionChannel(attach, patience, beat, model=model))
    try:
        yield pair
    finally:
        await pair.server.close()
        pair.channel.close()


async def no_router() -> Attachment:
    """``attach`` when there is no router."""
    raise TargetLostError("there is no router")


def tokens(events: list[StepEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def check_figures(events: list[StepEvent], n_prompt: int) -> RequestStats:
    """The contract of a request's figures, whichever router counted them."""
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
