"""Replaces stages of a pipeline: lost ones, and working ones on draining nodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from deployments.pipeline.stage_reports import CONNECT, LOAD, NOTICED, PROCESS, StageReplacement
from deployments.target_model.spares import SpareStages
from deployments.target_model.stage_group import SpareStage, StageGroup
from deployments.target_model.stage_handle import StageHandle
from deployments.target_model.standbys import StandbyPool
from engine.errors import ConfigError, TargetLostError

MAX_STARTS = 2  # of one stage within one replacement; then the pipeline is given up

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OngoingReplacement:
    """A replacement in progress."""

    reasons: dict[int, str]  # number of a process -> why it is replaced
    planned: bool = False  # the stages still work
    standbys: int = 0
    began: float = field(default_factory=time.monotonic)
    phases: dict[str, float] = field(default_factory=dict)

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def finish(self, number: int, error: str = "") -> StageReplacement:
        """The report of this replacement, completed or given up with an error."""
        seconds = time.monotonic() - self.began
        return StageReplacement(number, self.reasons, seconds, self.phases, self.standbys, self.planned, error)


class StageReplacer:
    """Watches the stages, and replaces them when the supervisor calls.

    Args:
        group: of the stages.
        standbys: takes the bundles of ended processes.
        spares: source of replacements.
        on_loss: called when a stage is lost.
    """

    def __init__(
        self, group: StageGroup, standbys: StandbyPool, spares: SpareStages, on_loss: Callable[[], None]
    ) -> None:
        self._group = group
        self._standbys = standbys
        self._spares = spares
        self._on_loss = on_loss
        self._watches: list[asyncio.Task[str]] = []  # of every stage; done when the stage is lost
        self._tasks: set[asyncio.Task[None]] = set()  # that end removed stages

    def start(self) -> None:
        self._watches = [self._watch(stage) for stage in self._group.stages]

    def _watch(self, stage: StageHandle) -> asyncio.Task[str]:
        watch = asyncio.create_task(stage.lost())
        watch.add_done_callback(lambda _: self._on_loss())
        return watch

    def found_lost(self) -> dict[int, str]:
        """Stages that are lost, and why."""
        return {i: _result(watch) for i, watch in enumerate(self._watches) if watch.done()}

    def stop(self) -> None:
        for watch in self._watches:
            watch.cancel()

    async def switch_to_spares(self, ongoing: OngoingReplacement) -> None:
        """Replace working stages by their loaded spares, and end them; raises as ``replace_lost``."""
        replaced = [self._group.stages[i] for i in ongoing.reasons]
        try:
            lost = await self._replace(ongoing.reasons, ongoing) or await self._connect(ongoing)
            if lost:
                ongoing.planned = False
                await self._replace_all(lost, ongoing)
        finally:
            for stage in replaced:
                self._spawn(self._retire(stage))

    async def replace_lost(self, ongoing: OngoingReplacement) -> None:
        """Replace lost stages and connect all stages. Adds stages that are lost meanwhile to ``ongoing.reasons``.

        Raises:
            TargetLostError: a stage failed to come up twice.
            ConfigError: two stages share no transport.
        """
        ongoing.add_seconds(NOTICED, max(time.monotonic() - self._group.stages[i].seen for i in ongoing.reasons))
        await self._replace_all(dict(ongoing.reasons), ongoing)

    async def _replace_all(self, lost: dict[int, str], ongoing: OngoingReplacement) -> None:
        starts: Counter[int] = Counter()
        cleared: set[StageHandle] = set()
        while lost:
            self._check_transports()
            lost = {one: lost.get(one, "its stage moves") for i in lost for one in self._spares.moving_with(i)}
            for i, why in lost.items():
                logger.warning("%s is lost and will be replaced: %s", self._group.stages[i].name, why)
                ongoing.reasons.setdefault(i, why)
                if (stage := self._group.stages[i]) not in cleared:  # else no replacement has come up yet
                    cleared.add(stage)
                    self._clear(stage)
            starts.update(lost.keys())
            if max(starts.values()) > MAX_STARTS:
                raise TargetLostError(self._group.list_reasons(lost))
            failed = await self._replace(lost, ongoing)
            lost = self.found_lost() | failed
            if not lost:
                lost = await self._connect(ongoing)

    def _check_transports(self) -> None:
        """Raise ConfigError when two stages share no transport: no replacement changes that."""
        for watch in self._watches:
            error = watch.exception() if watch.done() and not watch.cancelled() else None
            if isinstance(error, ConfigError):
                raise error

    def _clear(self, stage: StageHandle) -> None:
        """End a lost stage in the background: its process may be unreachable."""
        self._spawn(stage.end())
        self._standbys.vacate(stage.bundle)

    async def _replace(self, lost: Iterable[int], ongoing: OngoingReplacement) -> dict[int, str]:
        """Replace lost stages by spares; returns why some did not come up."""
        found = await self._spares.take(lost)
        failed = {}
        for i, spare in zip(lost, found, strict=True):
            if isinstance(spare, SpareStage):
                self._install(i, spare)
            elif isinstance(spare, TargetLostError):
                failed[i] = str(spare)
                self._watches[i].cancel()
                self._watches[i] = asyncio.create_task(_known(str(spare)))
            else:
                raise spare
        self._count([one for one in found if isinstance(one, SpareStage)], ongoing)
        return failed

    def _count(self, spares: list[SpareStage], ongoing: OngoingReplacement) -> None:
        ongoing.standbys += sum(one.was_standby for one in spares)
        ongoing.add_seconds(PROCESS, max((one.process for one in spares), default=0.0))
        ongoing.add_seconds(LOAD, max((one.load for one in spares), default=0.0))

    def _install(self, i: int, spare: SpareStage) -> None:
        self._watches[i].cancel()
        self._group.install(i, spare)
        self._watches[i] = self._watch(spare.stage)

    async def _connect(self, ongoing: OngoingReplacement) -> dict[int, str]:
        began = time.monotonic()
        lost = await self._group.connect()
        ongoing.add_seconds(CONNECT, time.monotonic() - began)
        return lost

    async def _retire(self, stage: StageHandle) -> None:
        await stage.retire()
        self._standbys.vacate(stage.bundle)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)


def _result(watch: asyncio.Task[str]) -> str:
    """Why a stage was lost; a watch that failed counts as a loss, because nothing else watches the stage."""
    error = watch.exception()
    if isinstance(error, ConfigError):
        return str(error)
    return watch.result() if error is None else f"its watch failed: {type(error).__name__}: {error}"


async def _known(reason: str) -> str:
    return reason
