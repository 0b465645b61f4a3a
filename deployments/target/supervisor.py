"""Keeps a pipeline whole: a stage that dies or hangs is replaced in its place, while the others stay loaded.

Decides when a stage is lost and what follows; ``stage_group`` starts and connects stages, ``stage_handle`` pings and
kills one. A router's connection breaks when a stage is replaced; the router then asks for the endpoints again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ray.exceptions import RayError

from deployments.pipeline.endpoints import Endpoints
from deployments.target.diagnosis import mark_hung_stages_dead
from deployments.target.stage_group import StageGroup
from deployments.target.stage_handle import StageHandle
from engine.errors import ConfigError, TargetLostError

logger = logging.getLogger(__name__)

MAX_STARTS = 2  # of one stage within one replacement; then the pipeline is given up
LOOK_S = 0.1  # between two looks whether the pipeline is in use
WAIT_S = 30.0  # how long a call for the endpoints waits for a replacement


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replacement, over or given up."""

    reasons: Mapping[int, str]  # stage -> why it was lost
    seconds: float  # from the loss until the pipeline was whole
    error: str = ""  # why the pipeline was given up


class StageSupervisor:
    """Supervises the stages of one pipeline.

    Args:
        launch: starts the actor of a stage, given its number.
        n_stages: how many there are.
        limit: seconds a replacement may take before the pipeline is given up.
    """

    def __init__(self, launch: Callable[[int], StageHandle], n_stages: int, limit: float) -> None:
        self._group = StageGroup(launch, n_stages)
        self._limit = limit
        self._watches: list[asyncio.Task[str]] = []  # of every stage; done when the stage is lost
        self._whole = asyncio.Event()
        self._failure = ""
        self._task: asyncio.Task[None] | None = None
        self.replacements: list[Replacement] = []

    async def start(self) -> None:
        """Start all stages, and supervise them from then on; raises as ``StageGroup.start``."""
        await self._group.start()
        self._watches = [self._watch(i) for i in range(len(self._group.stages))]
        self._task = asyncio.create_task(self._supervise())
        self._whole.set()

    # -- questions -----------------------------------------------------------------------------------------------

    async def endpoints(self, node: str) -> Endpoints:
        """Where the whole pipeline listens, for a router on ``node``; waits while a stage is being replaced.

        Raises:
            TargetLostError: the replacement takes longer than ``WAIT_S``, or was given up.
            ConfigError: the option ``transport`` does not reach that node.
        """
        self.check()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._whole.wait(), WAIT_S)
        self.check()
        if not self._whole.is_set():
            raise TargetLostError("a stage is being replaced")
        return self._group.endpoints(node)

    def check(self) -> None:
        """Raises TargetLostError once the pipeline is given up; not while a stage is being replaced in time."""
        if self._failure:
            raise TargetLostError(self._failure)
        if self._task is not None and self._task.done():
            raise TargetLostError("the supervision of the stages has ended; the log says why")

    @property
    def pids(self) -> list[int]:
        """Process ids, first stage to last; those of stages that are starting are missing."""
        return [stage.identity.pid for stage in self._group.stages if stage.identity is not None]

    def state(self) -> dict[str, Any]:
        """For operators: every stage's process and node, and the newest replacement."""
        return {
            "whole": self._whole.is_set(),
            "generation": self._group.generation,
            "stages": [
                {"name": stage.name, "pid": process.pid, "node": process.node, "ip": process.ip}
                for stage in self._group.stages
                if (process := stage.identity) is not None
            ],
            "replacements": len(self.replacements),
            "last_replacement": asdict(self.replacements[-1]) if self.replacements else None,
        }

    async def report_hang(self, reason: str) -> None:
        """Look for a stage that hangs, because a router waits for this pipeline, and mark it dead."""
        if self._whole.is_set():
            await mark_hung_stages_dead(list(self._group.stages), reason)

    # -- supervision ---------------------------------------------------------------------------------------------

    def _watch(self, i: int) -> asyncio.Task[str]:
        return asyncio.create_task(self._group.stages[i].lost())

    def _found_lost(self) -> dict[int, str]:
        return {i: _result(watch) for i, watch in enumerate(self._watches) if watch.done()}

    async def _supervise(self) -> None:
        while True:
            await asyncio.wait(self._watches, return_when=asyncio.FIRST_COMPLETED)
            self._whole.clear()
            began, reasons = time.monotonic(), self._found_lost()
            try:
                async with asyncio.timeout(self._limit):
                    await self._mend(reasons)
            except Exception as error:  # of any kind: Serve can still replace the whole pipeline
                slow = isinstance(error, TimeoutError)
                why = f"it took longer than {self._limit:g} s" if slow else f"{type(error).__name__}: {error}"
                await self._give_up(Replacement(reasons, time.monotonic() - began, why))
                return
            done = Replacement(reasons, time.monotonic() - began)
            logger.warning("%s replaced within %.2f s of the loss", self._names(done), done.seconds)
            self.replacements.append(done)
            self._whole.set()

    async def _mend(self, reasons: dict[int, str]) -> None:
        """Replace lost stages, with those that are lost meanwhile, and connect all; adds to ``reasons``."""
        starts: Counter[int] = Counter()
        lost = dict(reasons)
        while lost:
            self._check_links()
            for i, why in lost.items():
                logger.warning("%s is lost and will be replaced: %s", self._group.stages[i].name, why)
                reasons.setdefault(i, why)
            starts.update(lost.keys())
            if max(starts.values()) > MAX_STARTS:
                raise TargetLostError(self._group.told(lost))
            failed = dict(zip(lost, await asyncio.gather(*(self._replace(i) for i in lost)), strict=True))
            lost = self._found_lost() | {i: why for i, why in failed.items() if why}
            if not lost:
                lost = await self._group.connect()

    def _check_links(self) -> None:
        """Raises ConfigError when two stages share no transport: no replacement changes that."""
        for watch in self._watches:
            error = watch.exception() if watch.done() and not watch.cancelled() else None
            if isinstance(error, ConfigError):
                raise error

    async def _replace(self, i: int) -> str:
        """Replace one stage; returns why the new one did not come up, or ""."""
        self._watches[i].cancel()
        try:
            await self._group.replace(i)
        except TargetLostError as error:
            self._watches[i] = asyncio.create_task(_known(str(error)))
            return str(error)
        self._watches[i] = self._watch(i)
        return ""

    def _names(self, replacement: Replacement) -> str:
        return ", ".join(self._group.stages[i].name for i in replacement.reasons)

    async def _give_up(self, replacement: Replacement) -> None:
        self.replacements.append(replacement)
        self._failure = f"{self._names(replacement)} could not be replaced: {replacement.error}"
        logger.error("%s; the whole pipeline has to be", self._failure)
        for watch in self._watches:
            watch.cancel()
        await self._group.end()

    async def until_unused(self, within: float) -> None:
        """Wait until no router has a sequence on the pipeline, or it is lost; at most ``within`` seconds."""
        with contextlib.suppress(TimeoutError, RayError, ConfigError):
            async with asyncio.timeout(within):
                while (await self._group.stages[0].pulse()).n_sequences:
                    await asyncio.sleep(LOOK_S)

    def close(self) -> None:
        """End the stages in an orderly way; blocks for two seconds at most."""
        for task in (self._task, *self._watches):
            if task is not None:
                task.cancel()
        self._group.close()


def _result(watch: asyncio.Task[str]) -> str:
    """Why a stage was lost; a watch that failed counts as a loss, because nothing else watches the stage."""
    error = watch.exception()
    if isinstance(error, ConfigError):
        return str(error)
    return watch.result() if error is None else f"its watch failed: {type(error).__name__}: {error}"


async def _known(reason: str) -> str:
    return reason
