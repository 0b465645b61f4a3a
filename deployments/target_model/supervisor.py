"""Supervises a pipeline: a stage that dies, hangs or is on a draining node is replaced, while the others stay loaded.

This file decides when to replace stages and when to give up the pipeline. ``replacer`` replaces stages, ``stage_group``
starts and connects them, ``spares`` loads spares of stages on draining nodes, ``standbys`` provides processes, and
``stage_handle`` pings and kills one. A replacement breaks the router's connection; the router then asks for the
endpoints again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ray.exceptions import RayError

from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.stage_reports import StageReplacement
from deployments.target_model.bundles import Bundle, Bundles, FreeBundles
from deployments.target_model.diagnosis import mark_hung_stages_dead
from deployments.target_model.replacer import OngoingReplacement, StageReplacer
from deployments.target_model.spares import SpareStages
from deployments.target_model.stage_group import StageGroup
from deployments.target_model.stage_handle import StageHandle
from deployments.target_model.standbys import StandbyPool
from engine.errors import ConfigError, TargetLostError

logger = logging.getLogger(__name__)

CHECK_S = 0.1  # seconds between two checks whether the pipeline is in use
WAIT_S = 30.0  # seconds that a request for the endpoints waits for a replacement
MAX_REPORTED = 16  # replacements in the endpoints; a router requests these after each replacement


class StageSupervisor:
    """Supervises the stages of one pipeline.

    Args:
        group: of the stages.
        standbys: source of processes for replacements.
        limit: seconds a replacement may take before the pipeline is given up.
    """

    def __init__(self, group: StageGroup, standbys: StandbyPool, limit: float) -> None:
        self._group = group
        self._standbys = standbys
        self._limit = limit
        self._wake = asyncio.Event()  # a stage is lost, or a spare is loaded
        self._whole = asyncio.Event()
        self._settled = asyncio.Event()  # whole, or given up
        self._spares = SpareStages(group, standbys, self._whole, self._wake.set)
        self._replacer = StageReplacer(group, standbys, self._spares, self._wake.set)
        self._failure = ""
        self._task: asyncio.Task[None] | None = None
        self.replacements: list[StageReplacement] = []

    async def start(self) -> None:
        """Start all stages and supervise them; raises as ``StageGroup.start``."""
        await self._group.start()
        self._replacer.start()
        self._task = asyncio.create_task(self._supervise())
        self._standbys.start()  # now, because imports of standbys would disturb the measurement
        self._spares.start()
        self._whole.set()
        self._settled.set()

    # -- questions -----------------------------------------------------------------------------------------------

    async def endpoints(self, node: str) -> Endpoints:
        """Addresses of the pipeline for a router on ``node``; waits while a stage is being replaced.

        Raises:
            TargetLostError: the replacement takes longer than ``WAIT_S``, or was given up.
            ConfigError: the option ``transport`` does not reach that node.
        """
        self.check()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), WAIT_S)
        self.check()
        if not self._whole.is_set():
            raise TargetLostError("a stage is being replaced")
        return self._group.endpoints(node, self.replacements[-MAX_REPORTED:])

    def check(self) -> None:
        """Raise TargetLostError once the pipeline is given up; not while a replacement is in time."""
        if self._failure:
            raise TargetLostError(self._failure)
        if self._task is not None and self._task.done():
            raise TargetLostError("the supervision of the stages has ended; the log says why")

    @property
    def pids(self) -> list[int]:
        """Process ids, stage after stage and rank after rank; those of processes that are starting are missing."""
        return [stage.identity.pid for stage in self._group.stages if stage.identity is not None]

    def state(self) -> dict[str, Any]:
        """For operators: processes of stages and standbys, load times, draining nodes, and the newest replacement."""
        load = self._group.load
        return {
            "whole": self._whole.is_set(),
            "generation": self._group.generation,
            "load_seconds": load.seconds,
            "stages": [
                {"name": stage.name, "pid": process.pid, "node": process.node, "ip": process.ip}
                | {"load_seconds": own.seconds, "read_bytes": own.n_read}
                for stage, own in zip(self._group.stages, load.processes, strict=True)
                if (process := stage.identity) is not None
            ],
            "standbys": self._standbys.state(),
            "draining": sorted(self._standbys.free_bundles.draining),
            "replacements": len(self.replacements),
            "last_replacement": asdict(self.replacements[-1]) if self.replacements else None,
        }

    async def report_hang(self, reason: str) -> None:
        """Find a stage that hangs, because a router waits for this pipeline, and mark it dead."""
        if self._whole.is_set():
            await mark_hung_stages_dead(list(self._group.stages), reason, self._group.n_ranks)

    # -- supervision ---------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            await self._keep_whole()
        finally:
            self._settled.set()  # wakes requests for the endpoints

    async def _keep_whole(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            lost, ready = self._replacer.found_lost(), self._spares.ready()
            if not lost and not ready:
                continue
            self._whole.clear()
            self._settled.clear()
            ongoing = OngoingReplacement(lost or dict.fromkeys(ready, "its node drains"), planned=not lost)
            try:
                async with asyncio.timeout(self._limit):
                    if ongoing.planned:
                        await self._replacer.switch_to_spares(ongoing)
                    else:
                        await self._replacer.replace_lost(ongoing)
            except Exception as error:  # of any kind: Serve can still replace the whole pipeline
                slow = isinstance(error, TimeoutError)
                why = f"it took longer than {self._limit:g} s" if slow else f"{type(error).__name__}: {error}"
                await self._give_up(ongoing, why)
                return
            done = ongoing.finish(len(self.replacements) + 1)
            since = "while it went on" if done.planned else "of the loss"
            logger.warning("%s replaced within %.2f s %s: %s", self._names(done), done.seconds, since, done.phase_times)
            self.replacements.append(done)
            self._whole.set()
            self._settled.set()
            self._wake.set()  # another stage may be lost, or another spare loaded

    def _names(self, replacement: StageReplacement) -> str:
        return ", ".join(self._group.stages[i].name for i in replacement.reasons)

    async def _give_up(self, ongoing: OngoingReplacement, why: str) -> None:
        replacement = ongoing.finish(len(self.replacements) + 1, why)
        self.replacements.append(replacement)
        self._failure = f"{self._names(replacement)} could not be replaced: {why}"
        logger.error("%s; the whole pipeline has to be", self._failure)
        self._stop()
        await self._group.end()

    async def wait_until_unused(self, within: float) -> None:
        """Wait until no router has a sequence on the pipeline, or it is lost; at most ``within`` seconds.

        Standbys end at once: the next pipeline may need their room.
        """
        self._standbys.dismiss()
        with contextlib.suppress(TimeoutError, RayError, ConfigError):
            async with asyncio.timeout(within):
                while (await self._group.stages[0].pulse()).n_sequences:
                    await asyncio.sleep(CHECK_S)

    def close(self) -> None:
        """Let the stages clean up, and end them; blocks for two seconds at most."""
        if self._task is not None:
            self._task.cancel()
        self._stop()
        self._group.close()

    def _stop(self) -> None:
        self._replacer.stop()
        self._spares.close()
        self._standbys.close()


def supervise_stages(
    launch: Callable[[Bundle], StageHandle], bundles: Bundles, standby_stages: int, limit: float
) -> StageSupervisor:
    """Start the processes of a pipeline's stages, one in each of the bundles that are its own.

    Args:
        launch: starts a process in a bundle; returns at once.
        bundles: of the pipeline.
        standby_stages: number of standbys to keep.
        limit: as in ``StageSupervisor``.
    """

    def stage_nodes() -> set[str]:
        return {stage.identity.node for stage in group.stages if stage.identity is not None}

    standbys = StandbyPool(launch, FreeBundles(bundles, stage_nodes), standby_stages)
    group = StageGroup(launch, bundles.own, standbys, bundles.n_ranks)
    return StageSupervisor(group, standbys, limit)
