"""The stages of one pipeline: started, planned, loaded, connected to their neighbours, replaced one by one, ended.

A stage is one process, or several tensor-parallel ranks, of which rank 0 leads. Process ``stage * n_ranks + rank`` runs
a rank; lists and dictionaries have the processes in this order, or by this number.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray.exceptions import RayError

from deployments.pipeline.endpoints import Endpoints, StageEndpoint, neighbours
from deployments.pipeline.stage_reports import LoadReport, StageLoad, StagePlan, StageReplacement
from deployments.target_model.bundles import Bundle
from deployments.target_model.diagnosis import warm_up
from deployments.target_model.stage_handle import StageHandle, reason_of
from deployments.target_model.standbys import StandbyPool
from engine.errors import ConfigError, TargetLostError

CLEAN_UP_S = 2.0  # for stages to clean up before they are killed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpareStage:
    """A process that has loaded its layers and listens, to replace another."""

    stage: StageHandle
    loaded: StageLoad
    was_standby: bool
    process: float  # seconds until its process had started
    load: float  # seconds from then on


class StageGroup:
    """All stages of one pipeline.

    Args:
        launch: starts a stage's process in a bundle.
        bundles: of the processes.
        standbys: source of the processes of spares.
        n_ranks: of a stage.
    """

    def __init__(
        self,
        launch: Callable[[Bundle], StageHandle],
        bundles: Sequence[Bundle],
        standbys: StandbyPool,
        n_ranks: int = 1,
    ) -> None:
        self.n_ranks = n_ranks
        self._standbys = standbys
        self._seconds: dict[str, float] = {}  # of the phases that all stages wait for
        self._loads: dict[int, StageLoad] = {}
        self._plan: StagePlan | None = None  # known once a stage has made it
        self._secret = secrets.token_bytes(32)
        self.stages = [launch(bundle) for bundle in bundles]
        self.generation = 0  # how often the stages were connected

    async def start(self) -> None:
        """Let the first stage plan, let all load at the same time, connect them, and send a first step through.

        Raises:
            TargetLostError: a stage did not come up, or passes no step on; all stages are killed.
            ConfigError: an option of the target is wrong, or the requested transport does not connect two stages.
            UnsupportedModelError: the checkpoint cannot be run.
        """
        try:
            began = time.monotonic()
            await asyncio.gather(*(stage.arrive() for stage in self.stages))  # imports would disturb a measurement
            arrived = time.monotonic()
            rooms = await asyncio.gather(*(stage.room() for stage in self.stages))
            self._plan = await self.stages[0].plan(rooms)
            for i, memory in enumerate(self._plan.memory):
                logger.info("stage %d: %s", i, memory)
            self._seconds["plan"] = time.monotonic() - arrived
            for i, load in enumerate(await asyncio.gather(*(self._come_up(*one) for one in enumerate(self.stages)))):
                self._loads[i] = load
            loaded = time.monotonic()
            if lost := await self.connect():
                raise TargetLostError(self.list_reasons(lost))
            await warm_up(self.endpoints(self._endpoint(0).node), self.stages)
            ended = time.monotonic()
            self._seconds |= {"connect": ended - loaded, "ready": ended - began}
        except BaseException:
            for stage in self.stages:
                stage.kill()
            raise

    async def load_moved(self, stage: int) -> list[SpareStage]:
        """Let other processes load all ranks of a stage, which may work meanwhile; raises as ``load_spare``."""
        if self.n_ranks == 1:
            return [await self.load_spare(stage)]
        bundles = await self._standbys.free_bundles.choose()
        loading = [self.load_spare(stage * self.n_ranks + rank, bundle) for rank, bundle in enumerate(bundles)]
        found = await asyncio.gather(*loading, return_exceptions=True)
        spares = [one for one in found if isinstance(one, SpareStage)]
        for error in found:
            if isinstance(error, BaseException):
                for spare in spares:
                    self._standbys.give_back(spare.stage)
                raise error
        return spares

    async def load_spare(self, i: int, bundle: Bundle | None = None) -> SpareStage:
        """Let another process load what process ``i`` has. A lost rank's successor needs the rank's own bundle.

        Args:
            i: may work meanwhile, if it is the only rank of its stage.
            bundle: for the process; None: any, or that of the lost rank.

        Raises:
            TargetLostError: it did not come up.
        """
        began = time.monotonic()
        if self.n_ranks > 1:
            bundle = bundle or self._standbys.free_bundles.occupy(self.stages[i].bundle)
        stage, was_standby = await self._standbys.take(bundle)
        taken = time.monotonic()
        try:
            loaded = await self._come_up(i, stage)
        except BaseException:  # cancellation too
            self._standbys.give_back(stage)
            raise
        return SpareStage(stage, loaded, was_standby, taken - began, time.monotonic() - taken)

    def install(self, i: int, spare: SpareStage) -> None:
        """Replace process ``i``; ``connect`` must follow."""
        self.stages[i] = spare.stage
        self._loads[i] = spare.loaded

    async def _come_up(self, i: int, stage: StageHandle) -> StageLoad:
        loaded = await stage.come_up(i, self._secret, self._planned)
        logger.info(
            "%s loaded in %.1f s, %s, %.2f GiB, %s",
            stage.name,
            loaded.seconds,
            loaded.load,
            loaded.n_bytes / (1 << 30),
            stage.identity,
        )
        return loaded.load

    async def connect(self) -> dict[int, str]:
        """Connect every stage to its neighbours, and its ranks; steps in flight are dropped.

        Returns:
            The processes that were lost meanwhile, and why.
        """
        self.generation += 1
        endpoints = [self._endpoint(i) for i in range(len(self.stages))]
        calls = []
        for n, (following, rows) in enumerate(neighbours(endpoints[:: self.n_ranks])):
            first, *others = endpoints[n * self.n_ranks : (n + 1) * self.n_ranks]
            leader, *followers = self.stages[n * self.n_ranks : (n + 1) * self.n_ranks]
            calls.append(leader.serve(following, rows, tuple(other.seen_from(first.node) for other in others)))
            calls += [follower.serve(None, "") for follower in followers]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return {i: reason_of(answer) for i, answer in enumerate(answers) if isinstance(answer, BaseException)}

    def endpoints(self, node: str, replacements: Sequence[StageReplacement] = ()) -> Endpoints:
        """Addresses of the pipeline for a router on ``node``, with the newest replacements of its stages.

        Raises:
            ConfigError: the option ``transport`` does not reach that node.
        """
        first, last = self._endpoint(0).seen_from(node), self._endpoint(-self.n_ranks).seen_from(node)
        if not (first and last):
            raise ConfigError(
                "transport (--transport) is unix, but the router is on another node than the first or last stage; "
                "auto and tcp work there"
            )
        return Endpoints(first, last, self._secret, self._planned.info, self.load, tuple(replacements))

    @property
    def load(self) -> LoadReport:
        """Load times so far; of a replaced process those of the newest."""
        processes = tuple(self._loads.get(i, StageLoad()) for i in range(len(self.stages)))
        return LoadReport(dict(self._seconds), processes, self.n_ranks)

    @property
    def _planned(self) -> StagePlan:
        assert self._plan is not None, "a stage plans before any loads"
        return self._plan

    def _endpoint(self, i: int) -> StageEndpoint:
        endpoint = self.stages[i].endpoint
        assert endpoint is not None, "a stage listens before it is connected"
        return endpoint

    def list_reasons(self, reasons: dict[int, str]) -> str:
        """Reasons by process, as one line."""
        return "; ".join(f"{self.stages[i].name}: {why}" for i, why in reasons.items())

    async def end(self) -> None:
        """Kill all stages."""
        await asyncio.gather(*(stage.end() for stage in self.stages), return_exceptions=True)

    def close(self) -> None:
        """Let all stages clean up, then end them; blocks for ``CLEAN_UP_S`` at most."""
        with contextlib.suppress(RayError):
            ray.wait([stage.leave() for stage in self.stages], num_returns=len(self.stages), timeout=CLEAN_UP_S)
        for stage in self.stages:
            with contextlib.suppress(RayError, ValueError):
                stage.kill()
