"""Ends and deletes answers in time, and limits how many abandoned streams are generated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from deployments.answers.collection import ABANDONED_S, AnswerCollection
from deployments.answers.entry import AnswerEntry
from deployments.answers.runs import AnswerRuns
from deployments.options import AnswerLimits
from engine.errors import AnswerCancelledError, SpectraError, StepFailedError

MAX_ABANDONED = 8  # abandoned streams of a tenant that are generated at the same time
CHECK_S = 1.0  # between two checks of all answers


class AnswerDeadlines:
    """The deadlines of all answers.

    Args:
        kept, runs, limits: of the keeper.
        clock: seconds since 1970.
        end: ends an answer with an error.
        drop: deletes an answer.
    """

    def __init__(
        self,
        kept: AnswerCollection,
        runs: AnswerRuns,
        limits: AnswerLimits,
        clock: Callable[[], float],
        end: Callable[[AnswerEntry, SpectraError], None],
        drop: Callable[[AnswerEntry], None],
    ) -> None:
        self._kept = kept
        self._runs = runs
        self._limits = limits
        self._clock = clock
        self._end = end
        self._drop = drop

    async def keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()

    def check(self) -> None:
        """Delete answers that have expired; end those without readers, and those that take too long."""
        now, limits = self._clock(), self._limits
        self._share_abandoned(now)
        for entry in [*self._kept.by_id.values()]:
            if entry.end is not None:
                if now - entry.end.at >= limits.keep_seconds:
                    self._drop(entry)
            elif now - entry.created >= limits.longest_seconds:
                self._end(entry, StepFailedError(f"the answer took longer than {limits.longest_seconds:g} s"))
            elif not entry.is_background and not entry.n_readers:
                # Without an event, no client knows the id.
                patience = limits.unread_seconds if entry.has_events else min(ABANDONED_S, limits.unread_seconds)
                if now - entry.unread_since >= patience:
                    self._kept.n_abandoned += 1
                    self._end(entry, AnswerCancelledError(f"the answer had no reader for {patience:g} s"))

    def _share_abandoned(self, now: float) -> None:
        """Let a few abandoned streams of each tenant run, and pause the others until they have a reader."""
        n_running = Counter[str]()
        for entry in self._kept.list_abandoned(now):
            n_running[entry.tenant] += 1
            if n_running[entry.tenant] > MAX_ABANDONED:
                self._runs.pause(entry)
            elif entry.is_paused:
                self._runs.start(entry)
