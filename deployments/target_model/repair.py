"""Replaces stages of a pipeline: those that are lost, and those that have to leave while they still work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from deployments.pipeline.stage_reports import CONNECT, LOAD, NOTICED, PROCESS, StageReplacement
from deployments.target_model.departures import Departures
from deployments.target_model.stage_group import StageGroup, Substitute
from deployments.target_model.stage_handle import StageHandle
from deployments.target_model.standbys import Standbys
from engine.errors import ConfigError, TargetLostError

MAX_STARTS = 2  # of one stage within one replacement; then the pipeline is given up

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OngoingReplacement:
    """A replacement that goes on."""

    reasons: dict[int, str]  # stage -> why it is replaced
    planned: bool = False  # the stages still work
    standbys: int = 0
    began: float = field(default_factory=time.monotonic)
    phases: dict[str, float] = field(default_factory=dict)

    def took(self, phase: str, seconds: float) -> None:
        """A phase went on for this long."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def over(self, number: int, error: str = "") -> StageReplacement:
        """What it came to."""
        seconds = time.monotonic() - self.began
        return StageReplacement(number, self.reasons, seconds, self.phases, self.standbys, self.planned, error)


class Repair:
    """Watches the stages, and replaces them when told to.

    Args:
        group: of the stages.
        standbys: where the processes of substitutes come from.
        departures: where substitutes are prepared for stages that still work.
        on_loss: called when a stage is lost.
    """

    def __init__(
        self, group: StageGroup, standbys: Standbys, departures: Departures, on_loss: Callable[[], None]
    ) -> None:
        self._group = group
        self._standbys = standbys
        self._departures = departures
        self._on_loss = on_loss
        self._watches: list[asyncio.Task[str]] = []  # of every stage; done when the stage is lost
        self._leaving: set[asyncio.Task[None]] = set()  # of stages that are no longer in the group

    def start(self) -> None:
        """Begin to watch."""
        self._watches = [self._watch(stage) for stage in self._group.stages]

    def _watch(self, stage: StageHandle) -> asyncio.Task[str]:
        watch = asyncio.create_task(stage.lost())
        watch.add_done_callback(lambda _: self._on_loss())
        return watch

    def found_lost(self) -> dict[int, str]:
        """Stages that are lost, and why."""
        return {i: _result(watch) for i, watch in enumerate(self._watches) if watch.done()}

    def stop(self) -> None:
        """Watch no stage any more."""
        for watch in self._watches:
            watch.cancel()

    async def switch(self, ongoing: OngoingReplacement) -> None:
        """Put substitutes that are ready in the place of stages that still work, and end those; raises as ``mend``."""
        leaving = [self._group.stages[i] for i in ongoing.reasons]
        try:
            substitutes = [await self._departures.substitute(i) for i in ongoing.reasons]
            for i, substitute in zip(ongoing.reasons, substitutes, strict=True):
                self._put(i, substitute)
            self._count(substitutes, ongoing)
            if lost := await self._connect(ongoing):
                ongoing.planned = False
                await self._mend(lost, ongoing)
        finally:
            for stage in leaving:
                self._let_go(self._retire(stage))

    async def mend(self, ongoing: OngoingReplacement) -> None:
        """Replace lost stages, with those that are lost meanwhile, and connect all; adds to ``ongoing.reasons``.

        Raises:
            TargetLostError: a stage did not come up twice.
            ConfigError: two stages share no transport.
        """
        ongoing.took(NOTICED, max(time.monotonic() - self._group.stages[i].seen for i in ongoing.reasons))
        await self._mend(dict(ongoing.reasons), ongoing)

    async def _mend(self, lost: dict[int, str], ongoing: OngoingReplacement) -> None:
        starts: Counter[int] = Counter()
        cleared: set[StageHandle] = set()
        while lost:
            self._check_links()
            for i, why in lost.items():
                logger.warning("%s is lost and will be replaced: %s", self._group.stages[i].name, why)
                ongoing.reasons.setdefault(i, why)
                if (stage := self._group.stages[i]) not in cleared:  # else no other has come up in its place
                    cleared.add(stage)
                    self._clear(stage)
            starts.update(lost.keys())
            if max(starts.values()) > MAX_STARTS:
                raise TargetLostError(self._group.told(lost))
            failed = await self._replace(lost, ongoing)
            lost = self.found_lost() | failed
            if not lost:
                lost = await self._connect(ongoing)

    def _check_links(self) -> None:
        """Raises ConfigError when two stages share no transport: no replacement changes that."""
        for watch in self._watches:
            error = watch.exception() if watch.done() and not watch.cancelled() else None
            if isinstance(error, ConfigError):
                raise error

    def _clear(self, stage: StageHandle) -> None:
        """End a lost stage. The next one need not wait for that: the process may be out of reach."""
        self._let_go(stage.end())
        self._standbys.vacate(stage.bundle)

    async def _replace(self, lost: Iterable[int], ongoing: OngoingReplacement) -> dict[int, str]:
        """Put substitutes in the place of lost stages; returns why some did not come up."""
        found = await asyncio.gather(*(self._departures.substitute(i) for i in lost), return_exceptions=True)
        failed = {}
        for i, substitute in zip(lost, found, strict=True):
            if isinstance(substitute, Substitute):
                self._put(i, substitute)
            elif isinstance(substitute, TargetLostError):
                failed[i] = str(substitute)
                self._watches[i].cancel()
                self._watches[i] = asyncio.create_task(_known(str(substitute)))
            else:
                raise substitute
        self._count([one for one in found if isinstance(one, Substitute)], ongoing)
        return failed

    def _count(self, came: list[Substitute], ongoing: OngoingReplacement) -> None:
        ongoing.standbys += sum(one.was_waiting for one in came)
        ongoing.took(PROCESS, max((one.process for one in came), default=0.0))
        ongoing.took(LOAD, max((one.load for one in came), default=0.0))

    def _put(self, i: int, substitute: Substitute) -> None:
        self._watches[i].cancel()
        self._group.put(i, substitute)
        self._watches[i] = self._watch(substitute.stage)

    async def _connect(self, ongoing: OngoingReplacement) -> dict[int, str]:
        began = time.monotonic()
        lost = await self._group.connect()
        ongoing.took(CONNECT, time.monotonic() - began)
        return lost

    async def _retire(self, stage: StageHandle) -> None:
        await stage.retire()
        self._standbys.vacate(stage.bundle)

    def _let_go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._leaving.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._leaving.discard)


def _result(watch: asyncio.Task[str]) -> str:
    """Why a stage was lost; a watch that failed counts as a loss, because nothing else watches the stage."""
    error = watch.exception()
    if isinstance(error, ConfigError):
        return str(error)
    return watch.result() if error is None else f"its watch failed: {type(error).__name__}: {error}"


async def _known(reason: str) -> str:
    return reason
