"""Spares: for each stage on a draining node another process loads the same layers, while the stage still works.

Ray Serve moves the replicas of a draining node by itself, but stages are not replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from deployments.target_model.stage_group import SpareStage, StageGroup
from deployments.target_model.standbys import StandbyPool

CHECK_S = 0.5  # seconds between two checks for draining nodes
RETRY_S = 10.0  # seconds until another spare is loaded after a failed one

logger = logging.getLogger(__name__)


class SpareStages:
    """Loads spares for stages on draining nodes.

    Args:
        group: of the stages.
        standbys: source of processes; knows the draining nodes.
        whole: set while no stage is being replaced.
        on_ready: called when a spare is ready.
    """

    def __init__(
        self, group: StageGroup, standbys: StandbyPool, whole: asyncio.Event, on_ready: Callable[[], None]
    ) -> None:
        self._group = group
        self._standbys = standbys
        self._whole = whole
        self._on_ready = on_ready
        self._loading: dict[int, asyncio.Task[SpareStage]] = {}  # by stage
        self._not_before: dict[int, float] = {}  # stage -> ``time.monotonic`` of the next attempt
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check for draining nodes; needs a running event loop."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._whole.wait()
            bundles = self._standbys.free_bundles
            for i, stage in enumerate(self._group.stages):
                is_draining = stage.identity is not None and stage.identity.node in bundles.draining
                # Serve replaces the whole pipeline if its owner's node drains.
                if is_draining and not bundles.is_owner_draining and i not in self._loading:
                    self._load(i)
            await asyncio.sleep(CHECK_S)

    def _load(self, i: int) -> None:
        if time.monotonic() < self._not_before.get(i, 0.0):
            return
        logger.info("%s is on a draining node: a spare loads its layers", self._group.stages[i].name)
        task = self._loading[i] = asyncio.create_task(self._group.load_spare(i))
        task.add_done_callback(partial(self._finish, i))

    def _finish(self, i: int, task: asyncio.Task[SpareStage]) -> None:
        if self._loading.get(i) is not task or task.cancelled():
            return  # ``take`` awaits it
        if error := task.exception():
            logger.warning("stage %d stays on a draining node: %s", i, error)
            self._not_before[i] = time.monotonic() + RETRY_S
            del self._loading[i]
        else:
            self._on_ready()

    def ready(self) -> list[int]:
        """The stages whose spares are ready."""
        done = [(i, task) for i, task in self._loading.items() if task.done()]
        return [i for i, task in done if not task.cancelled() and task.exception() is None]

    async def take(self, i: int) -> SpareStage:
        """Wait for the spare of stage ``i``; load one if none is loading. Raises as ``StageGroup.load_spare``."""
        loading = self._loading.pop(i, None)
        return await (self._group.load_spare(i) if loading is None else loading)

    def close(self) -> None:
        """Stop; unused spares end with the pipeline's owner."""
        for task in (self._task, *self._loading.values()):
            if task is not None:
                task.cancel()
