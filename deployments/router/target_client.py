"""The router's client of one target deployment: connects to its pipeline, and reports a pipeline that hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import ray
from ray import serve
from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle

from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.leadership import (
    INCARNATION,
    PipelineInUseError,
    RouterStatus,
    SupersededError,
    exit_superseded,
)
from deployments.pipeline.replacement_seconds import ReplacementSeconds
from deployments.router.lane_connection import RECONNECT_S, TargetClient
from deployments.serve_calls import GONE, answer_of
from engine.errors import ConfigError, TargetLostError
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo

ANSWER_S = 10.0  # seconds to wait for a target's endpoints before asking again
MISCONFIGURED_S = (
    5.0  # pause before asking a target again that the configured transport does not reach, or that is another one
)

logger = logging.getLogger(__name__)


class ServeTarget:
    """One target deployment of one replica.

    Args:
        handle: of the deployment.
        replacements: counts those of its stages.
        is_elastic: whether it has a replica only for as long as it is held.
    """

    def __init__(self, handle: DeploymentHandle, replacements: ReplacementSeconds, is_elastic: bool = False) -> None:
        self.is_elastic = is_elastic
        self.name = handle.deployment_name
        self.trouble = ""  # why its pipeline cannot be used; shown in health
        self.is_another = False  # its pipeline runs another model, or runs it in another way
        self._handle = handle
        self._replacements = replacements
        self._has_led = False  # a pipeline of it, as a router that was ready
        self._costs: StepCosts | None = None

    def client(self, info: TargetInfo, costs: StepCosts | None = None) -> TargetClient:
        """What a lane needs of it, for a router that is ready to serve the target that ``info`` describes.

        Args:
            info: of the target.
            costs: its step times, for the router that comes after this one.
        """
        self._costs = costs
        hold = self.hold if self.is_elastic else None
        return TargetClient(self.name, partial(self.connect, info, ready=True), self.report_hang, hold)

    async def hold(self) -> None:
        """Keep a call to it open, so that Serve starts its replica, and lets it be, until this is cancelled."""
        while True:
            try:
                await answer_of(self._handle.hold.remote())
            except Exception as error:  # of any kind: a pipeline that is wanted and not held would be gone for good
                logger.info("%s is held no more, which is tried again: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)

    async def endpoints(self, ready: bool = False) -> Endpoints:
        """The pipeline's endpoints, as soon as it listens; asks again while Serve still names a dead replica.

        A router that is ``ready`` takes the pipeline over: routers that were started earlier are refused from then on.

        Raises:
            ConfigError: the configured transport does not reach this node.
        """
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    node = ray.get_runtime_context().get_node_id()
                    status = RouterStatus(INCARNATION, ready, self._has_led, self._costs)
                    endpoints: Endpoints = await answer_of(self._handle.endpoints.remote(node, status))
                    self._has_led |= ready
                    self._replacements.count(self.name, endpoints)
                    return endpoints
            except SupersededError as error:
                exit_superseded(error)
            except ConfigError as error:
                raise ConfigError(_message(error)) from error
            except (*GONE, TargetLostError, TimeoutError) as error:
                logger.info("%s does not answer yet: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)

    async def connect(self, info: TargetInfo, ready: bool = False) -> Pipeline:
        """Connect to its pipeline, as soon as there is one.

        Raises:
            ConfigError: like ``endpoints``, or the pipeline's target is not the one that ``info`` describes; a router
                that is ``ready`` logs it once and keeps trying instead.
            PipelineInUseError: another router serves on it, and this one is not ``ready``.
        """
        while True:
            try:
                endpoints = await self.endpoints(ready)
                self._check(info, endpoints.info)
                if endpoints.leader.incarnation and not ready:
                    raise PipelineInUseError(endpoints.leader.costs)
                pipeline = await Pipeline.connect(endpoints)
                self.trouble = ""
                return pipeline
            except TargetLostError as error:
                logger.info("no pipeline of %s yet: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)
            except ConfigError as error:
                if not ready:
                    raise
                self._complain(str(error))
                await asyncio.sleep(MISCONFIGURED_S)

    def _check(self, wanted: TargetInfo, found: TargetInfo) -> None:
        difference = wanted.difference(found)
        self.is_another = bool(difference)
        if difference:
            raise ConfigError(f"its target is not the one that this router serves: {difference}")

    def _complain(self, trouble: str) -> None:
        if trouble != self.trouble:
            logger.error("%s cannot be used: %s", self.name, trouble)
        self.trouble = trouble

    async def report_hang(self, reason: str) -> None:
        """Have it check its stages now, and not at the next ping."""
        await self._handle.report_hang.remote(reason)


def _message(error: ConfigError) -> str:
    """The message without the traceback that Ray adds."""
    return str(error.cause if isinstance(error, RayTaskError) else error)


async def names_of_running() -> set[str]:
    """The deployments of this application that have a replica, or are starting one, as Serve says."""
    status = await asyncio.to_thread(serve.status)
    application = status.applications[serve.get_replica_context().app_name]
    return {
        name
        for name, deployment in application.deployments.items()
        if any(n for state, n in deployment.replica_states.items() if state != "STOPPING")
    }


async def first_endpoints(targets: Sequence[ServeTarget]) -> tuple[ServeTarget, Endpoints]:
    """The target that comes up first, and its endpoints."""

    async def of(target: ServeTarget) -> tuple[ServeTarget, Endpoints]:
        return target, await target.endpoints()

    asking = [asyncio.create_task(of(target)) for target in targets]
    try:
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in asking:
            task.cancel()
