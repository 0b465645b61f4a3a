"""Stages on nodes that are about to end: for each of them another process loads its layers, while it still works.

A node that drains tells Ray so beforehand. Ray Serve moves the replicas of such a node; stages are none of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from deployments.target_model.stage_group import StageGroup, Substitute
from deployments.target_model.standbys import Standbys

LOOK_S = 0.5  # between two looks
AGAIN_S = 10.0  # until another substitute is tried for one that did not come up

logger = logging.getLogger(__name__)


class Departures:
    """Prepares substitutes.

    Args:
        group: of the stages.
        standbys: where processes come from; they know which nodes drain.
        whole: set while no stage is being replaced.
        on_ready: called when a substitute is ready.
    """

    def __init__(
        self, group: StageGroup, standbys: Standbys, whole: asyncio.Event, on_ready: Callable[[], None]
    ) -> None:
        self._group = group
        self._standbys = standbys
        self._whole = whole
        self._on_ready = on_ready
        self._coming: dict[int, asyncio.Task[Substitute]] = {}  # by stage
        self._not_before: dict[int, float] = {}  # stage -> ``time.monotonic`` of the next attempt
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look; needs a running event loop."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._whole.wait()
            places = self._standbys.places
            for i, stage in enumerate(self._group.stages):
                leaves = stage.identity is not None and stage.identity.node in places.draining
                if leaves and not places.is_leaving and i not in self._coming:  # else Serve replaces all stages
                    self._prepare(i)
            await asyncio.sleep(LOOK_S)

    def _prepare(self, i: int) -> None:
        if time.monotonic() < self._not_before.get(i, 0.0):
            return
        logger.info("%s is on a node that drains: its layers are loaded elsewhere", self._group.stages[i].name)
        task = self._coming[i] = asyncio.create_task(self._group.substitute(i))
        task.add_done_callback(partial(self._came, i))

    def _came(self, i: int, task: asyncio.Task[Substitute]) -> None:
        if self._coming.get(i) is not task or task.cancelled():
            return  # it is waited for elsewhere
        if error := task.exception():
            logger.warning("stage %d stays on a draining node: %s", i, error)
            self._not_before[i] = time.monotonic() + AGAIN_S
            del self._coming[i]
        else:
            self._on_ready()

    def ready(self) -> list[int]:
        """The stages whose substitutes are ready."""
        done = [(i, task) for i, task in self._coming.items() if task.done()]
        return [i for i, task in done if not task.cancelled() and task.exception() is None]

    async def substitute(self, i: int) -> Substitute:
        """The substitute of stage ``i``, or another if none is being prepared; raises as ``StageGroup.substitute``."""
        coming = self._coming.pop(i, None)
        return await (self._group.substitute(i) if coming is None else coming)

    def close(self) -> None:
        """Stop; substitutes that are not in use end with the pipeline's owner."""
        for task in (self._task, *self._coming.values()):
            if task is not None:
                task.cancel()
