"""Standbys: stage processes that hold no weights, which wait for a stage to be lost or are started for one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from deployments.target_model.bundles import Bundle
from deployments.target_model.places import Places
from deployments.target_model.stage_handle import StageHandle
from engine.errors import TargetLostError

LOOK_S = 1.0  # between two looks at nodes and bundles
AGAIN_S = 5.0  # until another standby is started for one that did not come up; doubled with each in a row
LONGEST_S = 300.0  # the same, at most

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Standby:
    """A stage process without weights, and how far it is."""

    stage: StageHandle
    is_ready: bool = False
    attendant: asyncio.Task[None] | None = None


class Standbys:
    """Starts processes, keeps some waiting, and hands them out.

    Args:
        launch: starts a process in a bundle; returns at once.
        places: of the pipeline.
        kept: processes that wait for a stage to be lost.
    """

    def __init__(self, launch: Callable[[Bundle], StageHandle], places: Places, kept: int) -> None:
        self.waiting: list[Standby] = []
        self.places = places
        self._launch = launch
        self._kept = kept
        self._takers: deque[asyncio.Future[StageHandle]] = deque()
        self._wake = asyncio.Event()
        self._failures = 0  # standbys in a row that did not come up
        self._not_before = 0.0  # ``time.monotonic`` of the next attempt
        self._trouble = ""  # why nodes could not be looked at last
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[StageHandle] = set()

    def start(self) -> None:
        """Begin to keep standbys; needs a running event loop."""
        self._spawn(self._run())

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    def dismiss(self) -> None:
        """Keep none any more, so that the next pipeline has the room; processes are started for lost stages alone."""
        self._kept = 0
        self._wake.set()

    def state(self) -> list[dict[str, Any]]:
        """For operators: the processes that have started."""
        return [
            {"ready": one.is_ready, "pid": process.pid, "node": process.node, "ip": process.ip}
            for one in self.waiting
            if (process := one.stage.identity) is not None
        ]

    # -- handing out ---------------------------------------------------------------------------------------------

    async def take(self) -> tuple[StageHandle, bool]:
        """A process that has imported what it needs, on a node that stays, and whether it had waited for that.

        Raises:
            TargetLostError: it was started, and did not come up.
        """
        for one in self.waiting:
            if one.is_ready and not self._leaves(one.stage):
                self._remove(one)
                return one.stage, True
        taker: asyncio.Future[StageHandle] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        self._wake.set()
        try:
            return await taker, False
        except asyncio.CancelledError:
            if taker.done() and not taker.cancelled() and taker.exception() is None:
                self.give_back(taker.result())
            raise
        finally:
            with contextlib.suppress(ValueError):  # it was served
                self._takers.remove(taker)

    def _hand_out(self, one: Standby) -> bool:
        """Give a process to a taker; returns whether there is one."""
        if self._leaves(one.stage) or (taker := self._next_taker()) is None:
            return False
        self._remove(one)
        taker.set_result(one.stage)
        return True

    def _next_taker(self) -> asyncio.Future[StageHandle] | None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():  # else it was cancelled, and has not noticed yet
                return taker
        return None

    def give_back(self, stage: StageHandle) -> None:
        """End a process, in the background; another may start in its bundle."""
        self._ending.add(stage)
        self._spawn(self._end(stage))
        self.vacate(stage.bundle)

    async def _end(self, stage: StageHandle) -> None:
        with contextlib.suppress(RayError):  # its node is gone
            await stage.end()
        self._ending.discard(stage)

    def vacate(self, bundle: Bundle) -> None:
        """The process of a bundle has ended, or is about to."""
        self.places.vacate(bundle)
        self._wake.set()

    def _leaves(self, stage: StageHandle) -> bool:
        return stage.identity is not None and stage.identity.node in self.places.draining

    def _remove(self, one: Standby) -> None:
        self.waiting.remove(one)
        if one.attendant is not asyncio.current_task() and one.attendant is not None:
            one.attendant.cancel()
        self._wake.set()

    # -- keeping -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._settle()
                self._trouble = ""
            except Exception as error:  # of Ray, such as a GCS that is away: all stays as it is
                if not self._trouble:
                    logger.warning("the nodes of the stages cannot be looked at: %s: %s", type(error).__name__, error)
                self._trouble = str(error) or type(error).__name__
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK_S)

    async def _settle(self) -> None:
        """Start what is missing; end what is more than wanted or on a draining node."""
        await self.places.look()
        for one in [*self.waiting]:
            if self._leaves(one.stage):
                logger.info("a standby leaves its node, which is draining")
                self._drop(one)
        if self.places.is_leaving:
            self._kept = 0  # Serve starts another pipeline, which needs the room
        may_start = self._kept if time.monotonic() >= self._not_before else 0
        while len(self.waiting) < len(self._takers) + may_start:
            self._start(await self.places.choose())
        # A standby in a reserved bundle moves to one of the replica's own that has become free: else both are held.
        for bundle in self.places.own_there():
            if len(self.waiting) <= self._wanted and not all(one.stage.bundle.is_own for one in self.waiting):
                self._start(self.places.occupy(bundle))
        self._trim()
        await self.places.tidy()

    @property
    def _wanted(self) -> int:
        """Processes that shall wait now, once they have been started."""
        return self._kept + len(self._takers)

    def _trim(self) -> None:
        """End what is more than wanted: of what is ready, those in reserved bundles first."""
        ready = sum(one.is_ready for one in self.waiting)
        for one in sorted(self.waiting, key=lambda one: (one.stage.bundle.is_own, one.is_ready)):
            if len(self.waiting) <= self._wanted or ready - one.is_ready < self._wanted:
                return
            ready -= one.is_ready
            self._drop(one)

    def _drop(self, one: Standby) -> None:
        self._remove(one)
        self.give_back(one.stage)

    # -- one process ---------------------------------------------------------------------------------------------

    def _start(self, bundle: Bundle) -> None:
        one = Standby(self._launch(bundle))
        self.waiting.append(one)
        one.attendant = self._spawn(self._attend(one))

    async def _attend(self, one: Standby) -> None:
        """From the start of a process until it is taken or lost."""
        try:
            await one.stage.arrive()
            if self._hand_out(one):
                return
            await one.stage.prepare()
            if self._hand_out(one):
                return
            one.is_ready, self._failures = True, 0
            logger.info("%s waits, %s", one.stage.name, one.stage.identity)
            self._wake.set()
            reason = await one.stage.lost()
        except Exception as error:  # of any kind: nothing else watches the process
            reason = str(error) or type(error).__name__
        self._lose(one, reason)

    def _lose(self, one: Standby, reason: str) -> None:
        logger.warning("%s is lost: %s", one.stage.name, reason)
        if not one.is_ready:
            self._not_before = time.monotonic() + min(AGAIN_S * 2**self._failures, LONGEST_S)
            self._failures += 1
        self._drop(one)
        if len(self._takers) > len(self.waiting) and (taker := self._next_taker()) is not None:
            taker.set_exception(TargetLostError(reason))

    def close(self) -> None:
        """End all processes that wait or are about to end, through Ray."""
        for task in self._tasks:
            task.cancel()
        for stage in (*(one.stage for one in self.waiting), *self._ending):
            stage.kill()
