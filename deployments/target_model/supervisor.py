"""Keeps a pipeline whole: a stage that dies, hangs or has to leave its node is replaced, while the others stay loaded.

Decides when that is to be done, and when a pipeline is given up; ``repair`` replaces stages, ``stage_group`` starts and
connects them, ``standbys`` has processes for those to come, ``stage_handle`` pings and kills one. A router's connection
breaks when a stage is replaced; the router then asks for the endpoints again.
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
from deployments.target_model.bundles import Bundle, Bundles
from deployments.target_model.departures import Departures
from deployments.target_model.diagnosis import mark_hung_stages_dead
from deployments.target_model.places import Places
from deployments.target_model.repair import OngoingReplacement, Repair
from deployments.target_model.stage_group import StageGroup
from deployments.target_model.stage_handle import StageHandle
from deployments.target_model.standbys import Standbys
from engine.errors import ConfigError, TargetLostError

logger = logging.getLogger(__name__)

LOOK_S = 0.1  # between two looks whether the pipeline is in use
WAIT_S = 30.0  # how long a call for the endpoints waits for a replacement
TOLD = 16  # replacements that a router is told of; it asks after each


class StageSupervisor:
    """Supervises the stages of one pipeline.

    Args:
        group: of the stages.
        standbys: where the processes of other stages come from.
        limit: seconds a replacement may take before the pipeline is given up.
    """

    def __init__(self, group: StageGroup, standbys: Standbys, limit: float) -> None:
        self._group = group
        self._standbys = standbys
        self._limit = limit
        self._wake = asyncio.Event()  # a stage is lost, or another is ready to take the place of one
        self._whole = asyncio.Event()
        self._settled = asyncio.Event()  # whole, or supervised no more
        self._departures = Departures(group, standbys, self._whole, self._wake.set)
        self._repair = Repair(group, standbys, self._departures, self._wake.set)
        self._failure = ""
        self._task: asyncio.Task[None] | None = None
        self.replacements: list[StageReplacement] = []

    async def start(self) -> None:
        """Start all stages, and supervise them from then on; raises as ``StageGroup.start``."""
        await self._group.start()
        self._repair.start()
        self._task = asyncio.create_task(self._supervise())
        self._standbys.start()  # now, because their imports would disturb what the stages measure
        self._departures.start()
        self._whole.set()
        self._settled.set()

    # -- questions -----------------------------------------------------------------------------------------------

    async def endpoints(self, node: str) -> Endpoints:
        """Where the whole pipeline listens, for a router on ``node``; waits while a stage is being replaced.

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
        return self._group.endpoints(node, self.replacements[-TOLD:])

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
        """For operators: stages and standbys with process and node, what the start took, draining nodes, and the newest
        replacement."""
        load = self._group.load
        return {
            "whole": self._whole.is_set(),
            "generation": self._group.generation,
            "load_seconds": load.seconds,
            "stages": [
                {"name": stage.name, "pid": process.pid, "node": process.node, "ip": process.ip}
                | {"load_seconds": own.seconds, "read_bytes": own.n_read}
                for stage, own in zip(self._group.stages, load.stages, strict=True)
                if (process := stage.identity) is not None
            ],
            "standbys": self._standbys.state(),
            "draining": sorted(self._standbys.places.draining),
            "replacements": len(self.replacements),
            "last_replacement": asdict(self.replacements[-1]) if self.replacements else None,
        }

    async def report_hang(self, reason: str) -> None:
        """Look for a stage that hangs, because a router waits for this pipeline, and mark it dead."""
        if self._whole.is_set():
            await mark_hung_stages_dead(list(self._group.stages), reason)

    # -- supervision ---------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            await self._keep_whole()
        finally:
            self._settled.set()  # calls that wait for the endpoints hear of it

    async def _keep_whole(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            lost, ready = self._repair.found_lost(), self._departures.ready()
            if not lost and not ready:
                continue
            self._whole.clear()
            self._settled.clear()
            ongoing = OngoingReplacement(lost or dict.fromkeys(ready, "its node drains"), planned=not lost)
            try:
                async with asyncio.timeout(self._limit):
                    await (self._repair.switch(ongoing) if ongoing.planned else self._repair.mend(ongoing))
            except Exception as error:  # of any kind: Serve can still replace the whole pipeline
                slow = isinstance(error, TimeoutError)
                why = f"it took longer than {self._limit:g} s" if slow else f"{type(error).__name__}: {error}"
                await self._give_up(ongoing, why)
                return
            done = ongoing.over(len(self.replacements) + 1)
            since = "while it went on" if done.planned else "of the loss"
            logger.warning("%s replaced within %.2f s %s: %s", self._names(done), done.seconds, since, done.phase_times)
            self.replacements.append(done)
            self._whole.set()
            self._settled.set()
            self._wake.set()  # what has come up meanwhile

    def _names(self, replacement: StageReplacement) -> str:
        return ", ".join(self._group.stages[i].name for i in replacement.reasons)

    async def _give_up(self, ongoing: OngoingReplacement, why: str) -> None:
        replacement = ongoing.over(len(self.replacements) + 1, why)
        self.replacements.append(replacement)
        self._failure = f"{self._names(replacement)} could not be replaced: {why}"
        logger.error("%s; the whole pipeline has to be", self._failure)
        self._stop()
        await self._group.end()

    async def until_unused(self, within: float) -> None:
        """Wait until no router has a sequence on the pipeline, or it is lost; at most ``within`` seconds.

        Standbys end at once: the next pipeline may need their room.
        """
        self._standbys.dismiss()
        with contextlib.suppress(TimeoutError, RayError, ConfigError):
            async with asyncio.timeout(within):
                while (await self._group.stages[0].pulse()).n_sequences:
                    await asyncio.sleep(LOOK_S)

    def close(self) -> None:
        """End the stages in an orderly way; blocks for two seconds at most."""
        if self._task is not None:
            self._task.cancel()
        self._stop()
        self._group.close()

    def _stop(self) -> None:
        """Watch and prepare nothing any more."""
        self._repair.stop()
        self._departures.close()
        self._standbys.close()


def supervised(
    launch: Callable[[Bundle], StageHandle], bundles: Bundles, standby_stages: int, limit: float
) -> StageSupervisor:
    """Start the processes of a pipeline's stages, one in each of the bundles that are its own.

    Args:
        launch: starts a process in a bundle; returns at once.
        bundles: of the pipeline.
        standby_stages: processes to keep for stages that are lost.
        limit: as in ``StageSupervisor``.
    """

    def stage_nodes() -> set[str]:
        return {stage.identity.node for stage in group.stages if stage.identity is not None}

    standbys = Standbys(launch, Places(bundles, stage_nodes), standby_stages)
    group = StageGroup(launch, bundles.own, standbys)
    return StageSupervisor(group, standbys, limit)
