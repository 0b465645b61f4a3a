"""The stages of one pipeline: started, planned, loaded, connected to their neighbours, replaced one by one, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable

import ray
from ray.exceptions import RayError

from deployments.pipeline.endpoints import Endpoints, StageEndpoint, neighbours
from deployments.pipeline.plan import StagePlan
from deployments.target.diagnosis import warm_up
from deployments.target.stage_handle import StageHandle, reason_of
from engine.errors import ConfigError, TargetLostError

CLEAN_UP_S = 2.0  # for stages to clean up before they are killed

logger = logging.getLogger(__name__)


class StageGroup:
    """All stages of one pipeline.

    Args:
        launch: starts the actor of a stage, given its number.
        n_stages: how many there are.
    """

    def __init__(self, launch: Callable[[int], StageHandle], n_stages: int) -> None:
        self._launch = launch
        self._plan: StagePlan | None = None  # known once a stage has made it
        self._secret = secrets.token_bytes(32)
        self.stages = [launch(i) for i in range(n_stages)]
        self.generation = 0  # how often the stages were connected

    async def start(self) -> None:
        """Let the first stage plan, let all load at the same time, connect them, and send a first step through.

        Raises:
            TargetLostError: a stage did not come up, or passes no step on; all stages are killed.
            ConfigError: an option of the target is wrong, or the transport that was asked for does not connect two
                stages.
            UnsupportedModelError: the checkpoint cannot be run.
        """
        try:
            await asyncio.gather(*(stage.arrive() for stage in self.stages))  # imports would disturb a measurement
            self._plan = await self.stages[0].plan()
            for i, memory in enumerate(self._plan.memory):
                logger.info("stage %d: %s", i, memory)
            await asyncio.gather(*(self._come_up(i) for i in range(len(self.stages))))
            if lost := await self.connect():
                raise TargetLostError(self.told(lost))
            await warm_up(self.endpoints(self._endpoint(0).node), self.stages)
        except BaseException:
            for stage in self.stages:
                stage.kill()
            raise

    async def replace(self, i: int) -> None:
        """Kill a lost stage and start another in its place; raises TargetLostError when it does not come up."""
        await self.stages[i].end()
        self.stages[i] = self._launch(i)
        await self._come_up(i)

    async def _come_up(self, i: int) -> None:
        stage = self.stages[i]
        loaded = await stage.come_up(self._secret, self._planned)
        assert stage.identity is not None
        logger.info(
            "%s loaded in %.1f s, %.2f GiB, process %d on %s",
            stage.name,
            loaded.seconds,
            loaded.n_bytes / (1 << 30),
            stage.identity.pid,
            stage.identity.ip,
        )

    async def connect(self) -> dict[int, str]:
        """Tell every stage its neighbours; steps in flight are dropped.

        Returns:
            The stages that were lost meanwhile, and why.
        """
        self.generation += 1
        known = zip(self.stages, neighbours([self._endpoint(i) for i in range(len(self.stages))]), strict=True)
        calls = [stage.serve(following, rows) for stage, (following, rows) in known]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return {i: reason_of(answer) for i, answer in enumerate(answers) if isinstance(answer, BaseException)}

    def endpoints(self, node: str) -> Endpoints:
        """Where the pipeline listens, for a router on ``node``.

        Raises:
            ConfigError: the option ``transport`` does not reach that node.
        """
        first, last = self._endpoint(0).seen_from(node), self._endpoint(-1).seen_from(node)
        if not (first and last):
            raise ConfigError(
                "transport (--transport) is unix, but the router is on another node than the first or last stage; "
                "auto and tcp work there"
            )
        return Endpoints(first, last, self._secret, self._planned.info)

    @property
    def _planned(self) -> StagePlan:
        assert self._plan is not None, "a stage plans before any loads"
        return self._plan

    def _endpoint(self, i: int) -> StageEndpoint:
        endpoint = self.stages[i].endpoint
        assert endpoint is not None, "a stage listens before it is connected"
        return endpoint

    def told(self, reasons: dict[int, str]) -> str:
        """Reasons by stage, as one line."""
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
