"""Standbys: stage processes without weights, which wait for a stage to be lost or are started for a replacement."""

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

from deployments.target_model.bundles import Bundle, FreeBundles
from deployments.target_model.stage_handle import StageHandle
from engine.errors import TargetLostError

CHECK_S = 1.0  # seconds between two checks of nodes and bundles
RETRY_S = 5.0  # seconds until another standby is started after a failed one; doubled with each failure in a row
MAX_RETRY_S = 300.0  # seconds, at most

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Standby:
    """A stage process without weights."""

    stage: StageHandle
    is_ready: bool = False  # has imported its libraries and prepared
    task: asyncio.Task[None] | None = None


class StandbyPool:
    """Starts stage processes, keeps some as standbys, and hands them out.

    Args:
        launch: starts a process in a bundle; returns at once.
        free_bundles: of the pipeline.
        kept: number of standbys to keep.
    """

    def __init__(self, launch: Callable[[Bundle], StageHandle], free_bundles: FreeBundles, kept: int) -> None:
        self.waiting: list[Standby] = []
        self.free_bundles = free_bundles
        self._launch = launch
        self._kept = kept
        self._requests: deque[asyncio.Future[StageHandle]] = deque()
        self._wake = asyncio.Event()
        self._failures = 0  # failed standbys in a row
        self._not_before = 0.0  # ``time.monotonic`` of the next attempt
        self._last_error = ""  # of the last check of the nodes
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
        """Keep no more standbys: the next pipeline needs the room. Processes are still started for lost stages."""
        self._kept = 0
        self._wake.set()

    def state(self) -> list[dict[str, Any]]:
        """For operators: the standbys that have started."""
        return [
            {"ready": one.is_ready, "pid": process.pid, "node": process.node, "ip": process.ip}
            for one in self.waiting
            if (process := one.stage.identity) is not None
        ]

    # -- handing out ---------------------------------------------------------------------------------------------

    async def take(self, bundle: Bundle | None = None) -> tuple[StageHandle, bool]:
        """Take a process in ``bundle``, or on a node that is not draining; also returns whether it was a standby.

        Raises:
            TargetLostError: a new process did not come up.
        """
        if bundle is not None:
            stage = self._launch(bundle)
            try:
                await stage.arrive()
            except BaseException:  # cancellation too
                self.give_back(stage)
                raise
            return stage, False
        for one in self.waiting:
            if one.is_ready and not self._is_draining(one.stage):
                self._remove(one)
                return one.stage, True
        request: asyncio.Future[StageHandle] = asyncio.get_running_loop().create_future()
        self._requests.append(request)
        self._wake.set()
        try:
            return await request, False
        except asyncio.CancelledError:
            if request.done() and not request.cancelled() and request.exception() is None:
                self.give_back(request.result())
            raise
        finally:
            with contextlib.suppress(ValueError):  # it has been answered
                self._requests.remove(request)

    def _hand_out(self, one: Standby) -> bool:
        """Give a process to the oldest request; returns whether there was one."""
        if self._is_draining(one.stage) or (request := self._next_request()) is None:
            return False
        self._remove(one)
        request.set_result(one.stage)
        return True

    def _next_request(self) -> asyncio.Future[StageHandle] | None:
        while self._requests:
            request = self._requests.popleft()
            if not request.done():  # else it is cancelled
                return request
        return None

    def give_back(self, stage: StageHandle) -> None:
        """End a process in the background; another may start in its bundle."""
        self._ending.add(stage)
        self._spawn(self._end(stage))
        self.vacate(stage.bundle)

    async def _end(self, stage: StageHandle) -> None:
        with contextlib.suppress(RayError):  # its node is gone
            await stage.end()
        self._ending.discard(stage)

    def vacate(self, bundle: Bundle) -> None:
        """Report that the process of a bundle has ended, or is about to."""
        self.free_bundles.vacate(bundle)
        self._wake.set()

    def _is_draining(self, stage: StageHandle) -> bool:
        return stage.identity is not None and stage.identity.node in self.free_bundles.draining

    def _remove(self, one: Standby) -> None:
        self.waiting.remove(one)
        if one.task is not asyncio.current_task() and one.task is not None:
            one.task.cancel()
        self._wake.set()

    # -- upkeep -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._settle()
                self._last_error = ""
            except Exception as error:  # of Ray, such as a GCS that does not answer: nothing changes
                if not self._last_error:
                    logger.warning("the nodes of the stages cannot be checked: %s: %s", type(error).__name__, error)
                self._last_error = str(error) or type(error).__name__
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), CHECK_S)

    async def _settle(self) -> None:
        """Start missing standbys; end surplus ones and those on draining nodes."""
        await self.free_bundles.refresh()
        for one in [*self.waiting]:
            if self._is_draining(one.stage):
                logger.info("a standby ends: its node is draining")
                self._drop(one)
        if self.free_bundles.is_owner_draining:
            self._kept = 0  # Serve starts another pipeline, which needs the room
        may_start = self._kept if time.monotonic() >= self._not_before else 0
        while len(self.waiting) < len(self._requests) + may_start:
            for bundle in await self.free_bundles.choose():
                self._start(bundle)
        # Replace a standby in a reserved bundle once one of the replica's own is free: else both stay in use.
        for bundle in self.free_bundles.usable_own():
            if len(self.waiting) <= self._n_required and not all(one.stage.bundle.is_own for one in self.waiting):
                self._start(self.free_bundles.occupy(bundle))
        self._trim()
        await self.free_bundles.release_reserved()

    @property
    def _n_required(self) -> int:
        """Number of standbys that should exist now, started or starting."""
        return self._kept + len(self._requests)

    def _trim(self) -> None:
        """End surplus standbys, those in reserved bundles first, and keep enough ready ones."""
        ready = sum(one.is_ready for one in self.waiting)
        for one in sorted(self.waiting, key=lambda one: (one.stage.bundle.is_own, one.is_ready)):
            if len(self.waiting) <= self._n_required or ready - one.is_ready < self._n_required:
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
        one.task = self._spawn(self._run_standby(one))

    async def _run_standby(self, one: Standby) -> None:
        """Watch a process from its start until it is taken or lost."""
        try:
            await one.stage.arrive()
            if self._hand_out(one):
                return
            await one.stage.prepare()
            if self._hand_out(one):
                return
            one.is_ready, self._failures = True, 0
            logger.info("%s is a standby, %s", one.stage.name, one.stage.identity)
            self._wake.set()
            reason = await one.stage.lost()
        except Exception as error:  # of any kind: nothing else watches the process
            reason = str(error) or type(error).__name__
        self._lose(one, reason)

    def _lose(self, one: Standby, reason: str) -> None:
        logger.warning("%s is lost: %s", one.stage.name, reason)
        if not one.is_ready:
            self._not_before = time.monotonic() + min(RETRY_S * 2**self._failures, MAX_RETRY_S)
            self._failures += 1
        self._drop(one)
        if len(self._requests) > len(self.waiting) and (request := self._next_request()) is not None:
            request.set_exception(TargetLostError(reason))

    def close(self) -> None:
        """End all standbys and ending processes, through Ray."""
        for task in self._tasks:
            task.cancel()
        for stage in (*(one.stage for one in self.waiting), *self._ending):
            stage.kill()
