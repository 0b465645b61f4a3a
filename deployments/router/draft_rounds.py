"""Rounds of drafting: after each step, speculators learn from it and draft, and lanes get the drafts as trees."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable
from dataclasses import replace

from deployments.observability.traces import RequestSpans
from deployments.router.draft_client import DraftClient, Drafts
from deployments.router.lane import Lane
from deployments.router.sessions import Sessions
from engine.scheduling.commit import Commit
from engine.scheduling.drafting import DraftRound, apply_drafts, start_round

logger = logging.getLogger(__name__)


class DraftRounds:
    """Runs the rounds of all lanes; failures cost drafts, never a request.

    Args:
        draft_client: where speculators run.
        sessions: know which lane a sequence is in.
        spans: are told how long rounds take; None: no request is traced.
    """

    def __init__(self, draft_client: DraftClient, sessions: Sessions, spans: RequestSpans | None = None) -> None:
        self._draft_client = draft_client
        self._spans = spans
        self._sessions = sessions
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, lane: Lane, commits: list[Commit]) -> None:
        """Run the round of one step; inline clients draft in this call, others in a task."""
        draft_round = start_round(commits, lane.scheduler)
        if draft_round.is_empty:
            return
        began = 0.0 if self._spans is None else time.perf_counter()
        drafts = self._draft_client.draft(draft_round)
        if not inspect.isawaitable(drafts):
            self._apply(lane, draft_round, drafts, began)
            return
        task = asyncio.get_running_loop().create_task(self._finish(lane, draft_round, drafts, began))
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the rounds that still run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish(self, lane: Lane, draft_round: DraftRound, drafts: Awaitable[Drafts], began: float) -> None:
        """Apply drafts that come later; when drafting fails, apply none, so that the sequences go on."""
        try:
            arrived = await drafts
        except Exception:
            logger.exception("drafting failed; %d sequences go on without drafts", len(draft_round.drafting))
            arrived = {}
        self._apply(lane, draft_round, arrived, began)
        lane.dispatch()

    def _apply(self, lane: Lane, draft_round: DraftRound, drafts: Drafts, began: float) -> None:
        if self._spans is not None:
            self._spans.count_round(draft_round.drafting, began)
        # A sequence that has moved meanwhile has another scheduler, which will have it drafted anew.
        here = [one for one in draft_round.drafting if self._sessions.lane_of(one) is lane]
        draft_round = replace(draft_round, drafting=here)
        try:
            apply_drafts(draft_round, drafts, lane.scheduler)
        except Exception:
            logger.exception("a draft is not a tree; %d sequences go on without drafts", len(here))
            apply_drafts(draft_round, {}, lane.scheduler)
