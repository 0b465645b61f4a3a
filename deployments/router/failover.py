"""Failover: sequences of a lane without a pipeline move to other lanes, and a lane that comes up takes some over.

A move costs a prefill, never a token: the new lane continues after the prompt and the output so far.
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
        sessions: record the new lane of a sequence.
        metrics: count moves.
        failover: seconds a lane may be without a pipeline before its sequences move.
    """

    def __init__(self, lanes: list[Lane], sessions: Sessions, metrics: RouterMetrics, failover: float) -> None:
        self._lanes = lanes
        self._sessions = sessions
        self._metrics = metrics
        self._failover = failover
        self._timers: dict[Lane, asyncio.TimerHandle] = {}  # of lanes that have lost their pipeline recently

    def start(self) -> None:
        """Give every lane ``failover`` seconds to get its first pipeline; needs a running event loop."""
        for lane in self._lanes:
            self.schedule_failover(lane)

    def close(self) -> None:
        """Cancel all scheduled moves."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def schedule_failover(self, lane: Lane) -> None:
        """Move the sequences of a lane without a pipeline, unless it has one again within ``failover`` seconds."""
        if len(self._lanes) > 1:
            loop = asyncio.get_running_loop()
            self._timers[lane] = loop.call_later(self._failover, self._fail_over, lane)

    def fill(self, lane: Lane) -> None:
        """Keep the sequences of a lane that has come up, and move others to it.

        It takes all sequences of lanes that have been down for longer than ``failover``, and waiting ones of lanes with
        more work.
        """
        self._cancel_timer(lane)
        for other in self._lanes:
            if not other.is_up and other not in self._timers:
                self._fail_over(other)
            elif other.is_up and other is not lane and lane.is_enabled:
                self._share(other, lane)

    def empty(self, lane: Lane) -> None:
        """Move the sequences of a lane that is being removed: the waiting ones, or all if it has no pipeline."""
        if lane.is_up:
            self._spread([one for one in lane.sequences if one.state is SequenceState.WAITING], lane)
        else:
            self._fail_over(lane)

    def _cancel_timer(self, lane: Lane) -> None:
        timer = self._timers.pop(lane, None)
        if timer is not None:
            timer.cancel()

    def _fail_over(self, lane: Lane) -> None:
        """Move all sequences of a lane that is still without a pipeline."""
        self._cancel_timer(lane)
        if not lane.is_up:
            self._spread(lane.sequences, lane)

    def _spread(self, sequences: Collection[Sequence], lane: Lane) -> None:
        """Move sequences of a lane to others that accept requests; without any, the sequences stay."""
        loads = {other: other.load for other in self._lanes if other.accepts_requests and other is not lane}
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
        """Move sequences from the end of a busy lane's queue to an idle lane, until both have the same work.

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
        self._metrics.moved.inc()
