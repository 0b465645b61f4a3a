"""Sequences change lanes here: away from a lane that has no pipeline, and to one that has just got its own.

A move costs a prefill, never a token: the text goes on behind prompt and output, wherever it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from deployments.router.lane import Lane
from deployments.router.metrics import RouterMetrics
from deployments.router.poison_requests import turn
from deployments.router.sessions import Sessions
from engine.scheduling.sequence import Sequence as Request
from engine.scheduling.sequence import State

logger = logging.getLogger(__name__)


class Moves:
    """Decides who moves and when.

    Args:
        lanes: all of them.
        sessions: told where their sequences are.
        metrics: count moves.
        patience: seconds a lane may be without a pipeline before others take its sequences over.
    """

    def __init__(self, lanes: Sequence[Lane], sessions: Sessions, metrics: RouterMetrics, patience: float) -> None:
        self._lanes = lanes
        self._sessions = sessions
        self._metrics = metrics
        self._patience = patience
        self._timers: dict[Lane, asyncio.TimerHandle] = {}

    def begin(self) -> None:
        """Lanes that do not come up are as good as lost."""
        for lane in self._lanes:
            self.went_down(lane)

    def close(self) -> None:
        """Move nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def went_down(self, lane: Lane) -> None:
        """A lane has no pipeline: unless it is back in time, others take its sequences."""
        if len(self._lanes) > 1:
            loop = asyncio.get_running_loop()
            self._timers[lane] = loop.call_later(self._patience, self._evacuate, lane)

    def came_up(self, lane: Lane) -> None:
        """A lane has a pipeline: it keeps its own, and takes from lanes that have been down for long or have more."""
        timer = self._timers.pop(lane, None)
        if timer is not None:
            timer.cancel()
        for other in self._lanes:
            if not other.is_up and other not in self._timers:
                self._evacuate(other)
            elif other.is_up and other is not lane:
                self._share(other, lane)

    def _evacuate(self, lane: Lane) -> None:
        """All sequences of a lane without a pipeline go to those that have one; if none has, they wait here."""
        self._timers.pop(lane, None)
        loads = {other: other.load for other in self._lanes if other.is_up}
        if lane.is_up or not loads:
            return
        leaving = sorted(lane.sequences, key=turn)
        if leaving:
            logger.warning("%s is without a pipeline: %d sequences move", lane.home.name, len(leaving))
        for sequence in leaving:
            to = min(loads, key=lambda other: loads[other])
            loads[to] += lane.work_of(sequence)
            self._move(sequence, lane, to)
        for other in loads:
            other.dispatch()

    def _share(self, busy: Lane, idle: Lane) -> None:
        """The latest of those that wait in a busy lane go to an idle one, until both have the same work.

        Not those that may cost it its pipeline.
        """
        more = busy.load - idle.load
        waiting = [
            one for one in busy.sequences if one.state is State.WAITING and not busy.quarantine.is_suspected(one)
        ]
        for sequence in sorted(waiting, key=turn, reverse=True):
            work = busy.work_of(sequence)
            if work >= more:
                break
            more -= 2 * work
            self._move(sequence, busy, idle)
        idle.dispatch()

    def _move(self, sequence: Request, lane: Lane, to: Lane) -> None:
        to.quarantine.adopt(sequence, lane.withdraw(sequence))
        session = self._sessions.find(sequence.seq)
        if session is not None:
            session.lane = to
        self._metrics.count_moved()
