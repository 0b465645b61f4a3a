"""Adds and removes pipelines while the router serves: enables and disables lanes as the policy decides.

The router keeps a call to the target deployment of every enabled lane open. Serve runs its replica, which is the
pipeline, as long as the call is. A disabled lane accepts no requests. Its running requests have ``grace`` seconds to
end; then they move to other lanes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from deployments.options import ScalingOptions
from deployments.router.failover import Rebalancer
from deployments.router.lane import Lane
from deployments.router.scaling.policy import Demand, ScalingPolicy
from deployments.router.service_rate import n_slots
from engine.scheduling.sequence import SequenceState

DECIDE_S = 0.5  # between two decisions
DRAIN_CHECK_S = 0.1  # between two checks whether a disabled lane still has sequences

logger = logging.getLogger(__name__)


class PipelineScaler:
    """Starts and stops lanes with the load.

    Args:
        lanes: all of them; those whose target has no ``hold`` always run.
        rebalancer: moves sequences away from disabled lanes.
        options: bounds and delays.
        grace: seconds that running requests of a disabled lane have to end.
    """

    def __init__(self, lanes: Sequence[Lane], rebalancer: Rebalancer, options: ScalingOptions, grace: float) -> None:
        self._lanes = lanes
        self._elastic = [lane for lane in lanes if lane.target.hold is not None]
        self._rebalancer = rebalancer
        self._options = options
        self._grace = grace
        self._policy = ScalingPolicy(options)
        self._holds: dict[Lane, asyncio.Task[None]] = {}  # open calls of enabled and draining lanes
        self._draining: dict[Lane, asyncio.Task[None]] = {}
        self._stopping: set[Lane] = set()  # draining lanes that disconnect: too late to enable them again
        self._pending: dict[Lane, float] = {}  # enabled lane that is not up -> since when
        self._overdue: set[Lane] = set()  # pending lanes that have been logged
        self._task: asyncio.Task[None] | None = None
        for lane in self._elastic:
            lane.is_enabled = False

    def start(self, running: Collection[str] = ()) -> None:
        """Start the enabled lanes; needs a running event loop.

        Args:
            running: names of targets that have a pipeline already, from the previous router.
        """
        for lane in self._lanes:
            if lane not in self._elastic:
                lane.start()
            elif lane.target.name in running:
                self._enable(lane)
        self._policy = ScalingPolicy(self._options, sum(lane.is_enabled for lane in self._lanes))
        self._apply()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def hand_over(self) -> None:
        """Stop scaling; pipelines stay until ``close``, for the next router."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop scaling and end all open calls."""
        tasks = [*self._holds.values(), *self._draining.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def set_bounds(self, least: int, most: int) -> None:
        """Change the bounds and apply them at once."""
        self._options = replace(self._options, least=least, most=most)
        self._policy.set_bounds(least, most)
        if self._task is not None:
            self._apply()

    @property
    def n_overdue(self) -> int:
        """Enabled pipelines that have not been up for longer than ``pending_timeout``."""
        return len(self._overdue)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(DECIDE_S)
            try:
                self._decide()
                self._log_overdue()
            except Exception:  # a bug; the pipelines keep serving
                logger.exception("scaling failed; the number of pipelines stays as it is")

    def _decide(self) -> None:
        before, demand = self._policy.desired, measure_demand(self._lanes)
        desired = self._policy.decide(demand, time.monotonic())
        if desired != before:
            why = f"requests would fill {demand.pipelines:.2f}, and have waited for up to {demand.waited:.1f} s"
            logger.info("%d pipelines are requested instead of %d: %s", desired, before, why)
        self._apply()

    def _apply(self) -> None:
        """Enable as many lanes as the policy desires, first those that are up; disable first those that are not."""
        n = self._policy.desired - sum(lane.is_enabled for lane in self._lanes)
        if n > 0:
            free = [lane for lane in self._elastic if not lane.is_enabled and lane not in self._stopping]
            for lane in sorted(free, key=lambda lane: not lane.is_up)[:n]:
                self._enable(lane)
        elif n < 0:
            enabled = [lane for lane in reversed(self._elastic) if lane.is_enabled]
            for lane in sorted(enabled, key=lambda lane: (lane.is_up, lane.load))[:-n]:
                if not lane.is_up or self._another_accepts(lane):  # else later
                    self._disable(lane)

    def _enable(self, lane: Lane) -> None:
        lane.is_enabled = True
        draining = self._draining.pop(lane, None)
        if draining is not None:
            draining.cancel()
        if lane not in self._holds:
            assert lane.target.hold is not None
            self._holds[lane] = asyncio.ensure_future(lane.target.hold())
            lane.start()

    def _disable(self, lane: Lane) -> None:
        lane.is_enabled = False
        self._rebalancer.empty(lane)
        self._draining[lane] = asyncio.get_running_loop().create_task(self._drain(lane))

    async def _drain(self, lane: Lane) -> None:
        """Let the running sequences of a lane end or move; then disconnect it and end its open call."""
        deadline = time.monotonic() + self._grace
        while lane.is_up and lane.sequences and (time.monotonic() < deadline or not self._another_accepts(lane)):
            await asyncio.sleep(DRAIN_CHECK_S)
        self._stopping.add(lane)
        await lane.stop()
        self._rebalancer.empty(lane)
        self._holds.pop(lane).cancel()
        self._stopping.discard(lane)
        del self._draining[lane]
        logger.info("%s is removed", lane.target.name)

    def _another_accepts(self, lane: Lane) -> bool:
        return any(other.accepts_requests for other in self._lanes if other is not lane)

    def _log_overdue(self) -> None:
        now = time.monotonic()
        missing = [lane for lane in self._lanes if lane.is_enabled and not lane.is_up]
        self._pending = {lane: self._pending.get(lane, now) for lane in missing}
        self._overdue &= self._pending.keys()
        for lane, since in self._pending.items():
            if lane not in self._overdue and now - since >= self._options.pending_timeout:
                self._overdue.add(lane)
                message = "%s was requested %.0f s ago and has not started; does the cluster have room for it?"
                logger.error(message, lane.target.name, now - since)


def measure_demand(lanes: Sequence[Lane]) -> Demand:
    """The demand of all live requests, including those of draining lanes."""
    now = time.perf_counter()  # the clock of ``Sequence.stats``
    waited = [
        now - one.stats.began
        for lane in lanes
        for one in lane.sequences
        if one.state is SequenceState.WAITING and one.stats.entered is None
    ]
    return Demand(
        pipelines=sum(map(_count_pipelines, lanes)),
        waited=max(waited, default=0.0),
        up=sum(lane.accepts_requests for lane in lanes),
    )


def _count_pipelines(lane: Lane) -> float:
    """Pipelines that would run a lane's requests concurrently.

    Running requests count by their share of slots or KV blocks, whichever is larger; waiting ones by today's lengths.
    """
    scheduler = lane.scheduler
    slots, blocks = scheduler.n_running / scheduler.options.max_sequences, scheduler.blocks
    used = max(slots, 1 - blocks.n_free / blocks.n_blocks) if scheduler.n_running else 0.0
    return used + (lane.n_waiting / n_slots(scheduler, lane.service_rate) if lane.n_waiting else 0.0)
