"""Lets pipelines come and go while the router serves: lanes of pipelines that are wanted connect, others wait.

A pipeline that is wanted is held: its owner is asked for it by a call that lasts, and is there for as long. One that is
given up takes no newcomers; what runs there has ``grace`` seconds to end, and goes on in other lanes then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from deployments.options import ScalingOptions
from deployments.router.lane import Lane
from deployments.router.rebalance import Rebalancer
from deployments.router.scaling.demand import demand_of
from deployments.router.scaling.policy import ScalingPolicy

LOOK_S = 0.5  # between two decisions
LEAVING_S = 0.1  # between two looks whether a lane that is given up has ended its sequences

logger = logging.getLogger(__name__)


class PipelineScaler:
    """Starts and stops lanes as the load asks for.

    Args:
        lanes: all of them; those whose target cannot be held always run.
        rebalancer: moves sequences away from lanes that are given up.
        options: bounds and delays.
        grace: seconds that what runs on a pipeline has to end once it is given up.
    """

    def __init__(self, lanes: Sequence[Lane], rebalancer: Rebalancer, options: ScalingOptions, grace: float) -> None:
        self._lanes = lanes
        self._elastic = [lane for lane in lanes if lane.target.hold is not None]
        self._rebalancer = rebalancer
        self._options = options
        self._grace = grace
        self._policy = ScalingPolicy(options)
        self._holds: dict[Lane, asyncio.Task[None]] = {}  # of pipelines that are wanted, and of those that are leaving
        self._leaving: dict[Lane, asyncio.Task[None]] = {}
        self._stopping: set[Lane] = set()  # of those that are leaving: too late to keep them
        self._pending: dict[Lane, float] = {}  # wanted and not up -> since when
        self._told: set[Lane] = set()  # of those that are pending: the log tells of them
        self._task: asyncio.Task[None] | None = None
        for lane in self._elastic:
            lane.is_wanted = False

    def start(self, running: Collection[str] = ()) -> None:
        """Start the lanes that are wanted; needs a running event loop.

        Args:
            running: names of targets that have a pipeline already, as an earlier router wanted.
        """
        for lane in self._lanes:
            if lane not in self._elastic:
                lane.start()
            elif lane.target.name in running:
                self._want(lane)
        self._policy = ScalingPolicy(self._options, sum(lane.is_wanted for lane in self._lanes))
        self._apply()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self) -> None:
        """Change nothing any more; pipelines stay until ``close``, as the next router wants them."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop, and hold no pipeline any more."""
        tasks = [*self._holds.values(), *self._leaving.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def bound(self, least: int, most: int) -> None:
        """Change the bounds, from now on."""
        self._options = replace(self._options, least=least, most=most)
        self._policy.bound(least, most)
        if self._task is not None:
            self._apply()

    @property
    def n_overdue(self) -> int:
        """Pipelines that have been wanted for longer than ``pending_timeout`` and are not there."""
        return len(self._told)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._decide()
                self._tell_of_overdue()
            except Exception:  # a bug; pipelines that are there serve on
                logger.exception("the number of pipelines could not be decided; it stays as it is")

    def _decide(self) -> None:
        before, demand = self._policy.wanted, demand_of(self._lanes)
        wanted = self._policy.decide(demand, time.monotonic())
        if wanted != before:
            why = f"requests would fill {demand.pipelines:.2f}, and have waited for {demand.waited:.1f} s at most"
            logger.info("%d pipelines are wanted instead of %d: %s", wanted, before, why)
        self._apply()

    def _apply(self) -> None:
        """Want as many lanes as the policy says, those that are up first; give up those that are not up first."""
        n = self._policy.wanted - sum(lane.is_wanted for lane in self._lanes)
        if n > 0:
            free = [lane for lane in self._elastic if not lane.is_wanted and lane not in self._stopping]
            for lane in sorted(free, key=lambda lane: not lane.is_up)[:n]:
                self._want(lane)
        elif n < 0:
            wanted = [lane for lane in reversed(self._elastic) if lane.is_wanted]
            for lane in sorted(wanted, key=lambda lane: (lane.is_up, lane.load))[:-n]:
                if not lane.is_up or self._has_place_beside(lane):  # else later
                    self._give_up(lane)

    def _want(self, lane: Lane) -> None:
        lane.is_wanted = True
        leaving = self._leaving.pop(lane, None)
        if leaving is not None:
            leaving.cancel()
        if lane not in self._holds:
            assert lane.target.hold is not None
            self._holds[lane] = asyncio.ensure_future(lane.target.hold())
            lane.start()

    def _give_up(self, lane: Lane) -> None:
        lane.is_wanted = False
        self._rebalancer.relieve(lane)
        self._leaving[lane] = asyncio.get_running_loop().create_task(self._leave(lane))

    async def _leave(self, lane: Lane) -> None:
        """Let what runs on a pipeline end or move; then disconnect, and hold it no more."""
        deadline = time.monotonic() + self._grace
        while lane.is_up and lane.sequences and (time.monotonic() < deadline or not self._has_place_beside(lane)):
            await asyncio.sleep(LEAVING_S)
        self._stopping.add(lane)
        await lane.stop()
        self._rebalancer.relieve(lane)
        self._holds.pop(lane).cancel()
        self._stopping.discard(lane)
        del self._leaving[lane]
        logger.info("%s is given up", lane.target.name)

    def _has_place_beside(self, lane: Lane) -> bool:
        return any(other.takes for other in self._lanes if other is not lane)

    def _tell_of_overdue(self) -> None:
        now = time.monotonic()
        missing = [lane for lane in self._lanes if lane.is_wanted and not lane.is_up]
        self._pending = {lane: self._pending.get(lane, now) for lane in missing}
        self._told &= self._pending.keys()
        for lane, since in self._pending.items():
            if lane not in self._told and now - since >= self._options.pending_timeout:
                self._told.add(lane)
                why = "has been wanted for %.0f s and is not there; does the cluster have room for it?"
                logger.error("%s " + why, lane.target.name, now - since)
