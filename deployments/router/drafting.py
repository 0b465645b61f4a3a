"""Drafting in the router: speculators draft before a lane sends its next step, and settle afterwards."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Collection, Coroutine, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any, Protocol

from deployments.observability.traces import RequestSpans
from deployments.router.lane import Lane
from deployments.router.sessions import Sessions
from engine.protocol import Branch, DraftPool, Needs
from engine.request import Request
from engine.scheduling.commit import Commit
from engine.scheduling.drafting import DraftRound, apply_drafts, start_round
from engine.scheduling.sequence import Sequence

logger = logging.getLogger(__name__)

Drafts = Mapping[int, Items[Branch]]  # by ``Sequence.seq``


class DraftClient(Protocol):
    """Drafts for all live requests."""

    def needs(self, method: str, request: Request | None = None) -> Needs:
        """What the target must read back for a method, or for a request of it; raises UnknownMethodError."""

    def begin(self, sequence: Sequence) -> None:
        """Create the state of an admitted request."""

    def draft(self, draft_round: DraftRound) -> Drafts | Awaitable[Drafts]:
        """Let speculators learn from a step's outcomes and draft; returns drafts, or an awaitable of them."""

    def settle(self, draft_round: DraftRound, seconds: float) -> Collection[int] | Awaitable[Collection[int]]:
        """Let speculators work after the send; returns the requests whose rest ends, or an awaitable of them.

        Args:
            draft_round: its resting sequences are reported.
            seconds: of the host between the answer and the send.
        """

    def end(self, sequence: Sequence) -> None:
        """Drop the state of a request."""

    async def n_live(self) -> int:
        """Requests that speculators hold state of."""


class InlineDraftClient:
    """Speculators in the router's process: faster than actors while drafting takes less time than a call to one."""

    def __init__(self, pool: DraftPool, vocab_size: int) -> None:
        self._pool = pool
        self._vocab_size = vocab_size

    def needs(self, method: str, request: Request | None = None) -> Needs:
        return self._pool.needs(method, request)

    def begin(self, sequence: Sequence) -> None:
        self._pool.begin(sequence.seq, sequence.request, self._vocab_size)

    def draft(self, draft_round: DraftRound) -> Drafts:
        return self._pool.advance(draft_round.outcomes, draft_round.budgets)

    def settle(self, draft_round: DraftRound, seconds: float) -> Collection[int]:
        return self._pool.settle(draft_round.resting_outcomes, seconds)

    def end(self, sequence: Sequence) -> None:
        self._pool.end(sequence.seq)

    async def n_live(self) -> int:
        return self._pool.n_live


class DraftRounds:
    """Runs the rounds of drafting of all lanes; a failure costs drafts, never a request.

    Args:
        draft_client: drafts.
        sessions: know which lane a sequence is in.
        spans: record the time of rounds; None: no request is traced.
    """

    def __init__(self, draft_client: DraftClient, sessions: Sessions, spans: RequestSpans | None = None) -> None:
        self._draft_client = draft_client
        self._spans = spans
        self._sessions = sessions
        self._tasks: set[asyncio.Task[None]] = set()
        self._started: DraftRound | None = None  # of the last commit; ``settle`` ends it
        self._started_at = 0.0

    def start(self, lane: Lane, commits: list[Commit]) -> None:
        """Start the round of one step; inline clients draft in this call, others in a task."""
        if self._started is not None:  # its lane failed before it settled
            self.settle()
        began = self._started_at = time.perf_counter()
        draft_round = self._started = start_round(commits, lane.scheduler)
        if not draft_round.must_advance:
            return
        drafts = self._draft_client.draft(draft_round)
        if inspect.isawaitable(drafts):
            self._started = None  # ``_finish`` settles it
            self._run(self._finish(lane, draft_round, drafts, began))
        else:
            self._apply(lane, draft_round, drafts, began)

    def settle(self) -> None:
        """Settle the round that was started last, once its lane has sent the next step; rounds in actors end later."""
        draft_round, self._started = self._started, None
        if draft_round is not None:
            self._settle(draft_round, time.perf_counter() - self._started_at)

    def _settle(self, draft_round: DraftRound, seconds: float) -> None:
        if not draft_round.must_settle:
            return
        ended = self._draft_client.settle(draft_round, seconds)
        if inspect.isawaitable(ended):
            self._run(self._end_rests(draft_round, ended))
        else:
            self._sessions.end_rests(ended)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def _end_rests(self, draft_round: DraftRound, awaitable: Awaitable[Collection[int]]) -> None:
        """End rests once the answer arrives; after a failure end all, because nothing else would."""
        try:
            ended = await awaitable
        except Exception:
            logger.exception("settling failed; %d sequences rest no longer", len(draft_round.resting))
            ended = [commit.sequence.seq for commit in draft_round.resting]
        self._sessions.end_rests(ended)

    async def close(self) -> None:
        """Cancel the running rounds."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish(self, lane: Lane, draft_round: DraftRound, awaitable: Awaitable[Drafts], began: float) -> None:
        """Apply drafts once they arrive; when drafting fails, let the sequences continue without."""
        try:
            drafts = await awaitable
        except Exception:
            logger.exception("drafting failed; %d sequences continue without drafts", len(draft_round.drafting))
            drafts = {}
        self._apply(lane, draft_round, drafts, began)
        lane.dispatch()
        self._settle(draft_round, time.perf_counter() - began)

    def _apply(self, lane: Lane, draft_round: DraftRound, drafts: Drafts, began: float) -> None:
        if self._spans is not None:
            self._spans.count_round(draft_round.drafting, began)
        # The new scheduler of a sequence that has moved meanwhile requests another draft.
        here = [one for one in draft_round.drafting if self._sessions.lane_of(one) is lane]
        draft_round = replace(draft_round, drafting=here)
        try:
            apply_drafts(draft_round, drafts, lane.scheduler)
        except Exception:
            logger.exception("a draft is not a tree; %d sequences continue without drafts", len(here))
            apply_drafts(draft_round, {}, lane.scheduler)
