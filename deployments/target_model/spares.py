"""Spares: for each stage on a draining node other processes load the same layers, while the stage still works.

Ray Serve moves the replicas of a draining node by itself, but stages are not replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from deployments.target_model.stage_group import SpareStage, StageGroup
from deployments.target_model.stage_handle import StageHandle
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
        self._loading: dict[int, asyncio.Task[list[SpareStage]]] = {}  # stage -> a spare for each of its ranks
        self._not_before: dict[int, float] = {}  # stage -> ``time.monotonic`` of the next attempt
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check for draining nodes; needs a running event loop."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._whole.wait()
            bundles = self._standbys.free_bundles
            for i, leader in enumerate(self._group.stages[:: self._group.n_ranks]):
                is_draining = leader.identity is not None and leader.identity.node in bundles.draining
                # Serve replaces the whole pipeline if its owner's node drains.
                if is_draining and not bundles.is_owner_draining and i not in self._loading:
                    self._load(i, leader)
            await asyncio.sleep(CHECK_S)

    def _load(self, i: int, leader: StageHandle) -> None:
        if time.monotonic() < self._not_before.get(i, 0.0):
            return
        logger.info("%s is on a draining node: a spare loads its layers", leader.name)
        task = self._loading[i] = asyncio.create_task(self._group.load_moved(i))
        task.add_done_callback(partial(self._finish, i))

    def _finish(self, i: int, task: asyncio.Task[list[SpareStage]]) -> None:
        if self._loading.get(i) is not task or task.cancelled():
            return  # ``take`` awaits it
        if error := task.exception():
            logger.warning("stage %d stays on a draining node: %s", i, error)
            self._not_before[i] = time.monotonic() + RETRY_S
            del self._loading[i]
        else:
            self._on_ready()

    def ready(self) -> list[int]:
        """The processes whose spares are ready, always all of a stage."""
        done = [(i, task) for i, task in self._loading.items() if task.done()]
        ready = [i for i, task in done if not task.cancelled() and task.exception() is None]
        return [number for i in ready for number in self._ranks_of(i)]

    def moving_with(self, number: int) -> Sequence[int]:
        """The processes that must be replaced together with this one: ranks of a stage that moves to another node."""
        stage = number // self._group.n_ranks
        return self._ranks_of(stage) if stage in self._loading else (number,)

    def _ranks_of(self, stage: int) -> range:
        return range(stage * self._group.n_ranks, (stage + 1) * self._group.n_ranks)

    async def take(self, numbers: Iterable[int]) -> list[SpareStage | BaseException]:
        """Wait for the spares of processes; load those that are not loading. Returns errors of ``load_spare``, too."""
        n_ranks, numbers = self._group.n_ranks, list(numbers)
        moves = {number // n_ranks for number in numbers} & self._loading.keys()
        moving = {i: asyncio.create_task(self._end_move(i, self._loading.pop(i))) for i in moves}

        async def take_one(number: int) -> SpareStage:
            loading = moving.get(number // n_ranks)
            return await self._group.load_spare(number) if loading is None else (await loading)[number % n_ranks]

        return await asyncio.gather(*map(take_one, numbers), return_exceptions=True)

    async def _end_move(self, i: int, loading: asyncio.Task[list[SpareStage]]) -> list[SpareStage]:
        """Wait for a move, or load in the own bundle if that is on another node before there is room elsewhere."""
        n_ranks = self._group.n_ranks
        own = self._group.stages[i * n_ranks].bundle
        while not (await asyncio.wait((loading,), timeout=CHECK_S))[0]:
            usable = sum(one.is_with(own) for one in self._standbys.free_bundles.usable_own())
            if usable == n_ranks > 1:  # of one rank, the pool itself prefers the own bundle
                loading.cancel()
                return await self._group.load_moved(i)
        return loading.result()

    def close(self) -> None:
        """Stop; unused spares end with the pipeline's owner."""
        for task in (self._task, *self._loading.values()):
            if task is not None:
                task.cancel()
