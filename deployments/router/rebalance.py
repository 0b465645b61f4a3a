"""Rebalancing: sequences move from a lane that has no pipeline, or shall have none, and to one that has just got one.

A move costs a prefill, never a token: the text goes on behind prompt and output in any lane.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from deployments.router.lane import Lane
from deployments.router.metrics import RouterMetrics
from deployments.router.poison_requests import queue_order
from deployments.router.sessions import Sessions
from engine.scheduling.sequence import Sequence, SequenceState

logger = logging.getLogger(__name__)


class Rebalancer:
    """Moves sequences between lanes.

    Args:
        lanes: all of them.
        sessions: notes the new lane of a sequence.
        metrics: counts moves.
        failover: seconds a lane may be without a pipeline before its sequences move.
    """

    def __init__(self, lanes: list[Lane], sessions: Sessions, metrics: RouterMetrics, failover: float) -> None:
        self._lanes = lanes
        self._sessions = sessions
        self._metrics = metrics
        self._failover = failover
        self._timers: dict[Lane, asyncio.TimerHandle] = {}  # of lanes that have lost their pipeline just now

    def start(self) -> None:
        """Give every lane ``failover`` seconds to get its first pipeline; needs a running event loop."""
        for lane in self._lanes:
            self.went_down(lane)

    def close(self) -> None:
        """Cancel all moves to come."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def went_down(self, lane: Lane) -> None:
        """Move the sequences of a lane without a pipeline, unless it has one again within ``failover`` seconds."""
        if len(self._lanes) > 1:
            loop = asyncio.get_running_loop()
            self._timers[lane] = loop.call_later(self._failover, self._evacuate, lane)

    def came_up(self, lane: Lane) -> None:
        """Keep the sequences of a lane that has a pipeline, and move others to it: all sequences of lanes that have
        been down for longer than ``failover``, and waiting ones of lanes with more work."""
        timer = self._timers.pop(lane, None)
        if timer is not None:
            timer.cancel()
        for other in self._lanes:
            if not other.is_up and other not in self._timers:
                self._evacuate(other)
            elif other.is_up and other is not lane and lane.is_wanted:
                self._share(other, lane)

    def relieve(self, lane: Lane) -> None:
        """Move the sequences of a lane that shall have no pipeline any more: those that wait, or all if it has none."""
        if lane.is_up:
            self._spread([one for one in lane.sequences if one.state is SequenceState.WAITING], lane)
        else:
            self._evacuate(lane)

    def _evacuate(self, lane: Lane) -> None:
        """Move all sequences of a lane without a pipeline."""
        timer = self._timers.pop(lane, None)
        if timer is not None:
            timer.cancel()
        if not lane.is_up:
            self._spread(lane.sequences, lane)

    def _spread(self, sequences: Collection[Sequence], lane: Lane) -> None:
        """Move sequences of a lane to others that take newcomers; without any, the sequences stay."""
        loads = {other: other.load for other in self._lanes if other.takes and other is not lane}
        if not sequences or not loads:
            return
        logger.warning("%d sequences of %s move to other lanes", len(sequences), lane.target.name)
        for sequence in sorted(sequences, key=queue_order):
            to = min(loads, key=lambda other: loads[other])
            loads[to] += lane.work_of(sequence)
            self._move(sequence, lane, to)
        for other in loads:
            other.dispatch()

    def _share(self, busy: Lane, idle: Lane) -> None:
        """Move the last of the waiting sequences of a busy lane to an idle one, until both have the same work.

        Suspected poison requests stay: they may cost the idle lane its pipeline.
        """
        more = busy.load - idle.load
        waiting = [
            one
            for one in busy.sequences
            if one.state is SequenceState.WAITING and not busy.poison_requests.is_suspected(one)
        ]
        for sequence in sorted(waiting, key=queue_order, reverse=True):
            work = busy.work_of(sequence)
            if work >= more:
                break
            more -= 2 * work
            self._move(sequence, busy, idle)
        idle.dispatch()

    def _move(self, sequence: Sequence, lane: Lane, to: Lane) -> None:
        to.poison_requests.adopt(sequence, lane.withdraw(sequence))
        self._sessions.move(sequence, to)
        self._metrics.count_moved()
