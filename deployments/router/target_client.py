"""The router's client of one target deployment: connects to its pipeline, and reports a hang."""

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
from deployments.pipeline.replacement_metrics import ReplacementMetrics
from deployments.router.lane_connection import RECONNECT_S, TargetClient
from deployments.serve_calls import LOST_REPLICA_ERRORS, await_response
from engine.errors import ConfigError, TargetLostError
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo

ANSWER_S = 10.0  # timeout of a target's endpoints; then the router asks again
MISCONFIGURED_S = 5.0  # pause before asking again after a ConfigError: wrong transport or another target

logger = logging.getLogger(__name__)


class ServeTarget:
    """One target deployment with one replica.

    Args:
        handle: of the deployment.
        replacements: counts the replacements of its stages.
        is_elastic: whether it has a replica only while a call to ``hold`` is open.
    """

    def __init__(self, handle: DeploymentHandle, replacements: ReplacementMetrics, is_elastic: bool = False) -> None:
        self.is_elastic = is_elastic
        self.name = handle.deployment_name
        self.problem = ""  # why its pipeline cannot be used; part of health
        self.has_other_model = False  # its pipeline has another model, precision or size than the router serves
        self._handle = handle
        self._replacements = replacements
        self._has_led = False  # whether this router, once ready, has led a pipeline of the target
        self._costs: StepCosts | None = None

    def client(self, info: TargetInfo, costs: StepCosts | None = None) -> TargetClient:
        """Return the client of a lane, for a router that is ready to serve.

        Args:
            info: of the target that the router serves.
            costs: step times of the target, for the next router.
        """
        self._costs = costs
        hold = self.hold if self.is_elastic else None
        return TargetClient(self.name, partial(self.connect, info, ready=True), self.report_hang, hold)

    async def hold(self) -> None:
        """Keep a call to the target open until cancelled, so that Serve starts its replica and keeps it."""
        while True:
            try:
                await await_response(self._handle.hold.remote())
            except Exception as error:  # of any kind: without the call the pipeline would be gone for good
                logger.info("the call that keeps %s running has ended; calling again: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)

    async def endpoints(self, ready: bool = False) -> Endpoints:
        """The pipeline's endpoints, once it listens; asks again while Serve still routes to a dead replica.

        A router that is ``ready`` takes the pipeline over: the target refuses earlier routers from then on.

        Raises:
            ConfigError: the configured transport does not reach this node.
        """
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    node = ray.get_runtime_context().get_node_id()
                    status = RouterStatus(INCARNATION, ready, self._has_led, self._costs)
                    endpoints: Endpoints = await await_response(self._handle.endpoints.remote(node, status))
                    self._has_led |= ready
                    self._replacements.count(self.name, endpoints)
                    return endpoints
            except SupersededError as error:
                exit_superseded(error)
            except ConfigError as error:
                raise ConfigError(_message(error)) from error
            except (*LOST_REPLICA_ERRORS, TargetLostError, TimeoutError) as error:
                logger.info("%s does not answer yet: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)

    async def connect(self, info: TargetInfo, ready: bool = False) -> Pipeline:
        """Connect to the pipeline, once there is one.

        Raises:
            ConfigError: as in ``endpoints``, or the pipeline's target is not the one that ``info`` describes. A router
                that is ``ready`` logs it once and keeps trying instead.
            PipelineInUseError: another router serves on the pipeline, and this one is not ``ready``.
        """
        while True:
            try:
                endpoints = await self.endpoints(ready)
                self._check_info(info, endpoints.info)
                if endpoints.leader.incarnation and not ready:
                    raise PipelineInUseError(endpoints.leader.costs)
                pipeline = await Pipeline.connect(endpoints)
                self.problem = ""
                return pipeline
            except TargetLostError as error:
                logger.info("no pipeline of %s yet: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)
            except ConfigError as error:
                if not ready:
                    raise
                self._log_problem(str(error))
                await asyncio.sleep(MISCONFIGURED_S)

    def _check_info(self, expected: TargetInfo, found: TargetInfo) -> None:
        difference = expected.difference(found)
        self.has_other_model = bool(difference)
        if difference:
            raise ConfigError(f"its target is not the one that this router serves: {difference}")

    def _log_problem(self, problem: str) -> None:
        if problem != self.problem:
            logger.error("%s cannot be used: %s", self.name, problem)
        self.problem = problem

    async def report_hang(self, reason: str) -> None:
        """Let the target check its stages now, not at the next ping."""
        await self._handle.report_hang.remote(reason)


def _message(error: ConfigError) -> str:
    """The message, without the traceback that Ray adds."""
    return str(error.cause if isinstance(error, RayTaskError) else error)


async def names_of_running() -> set[str]:
    """Names of this application's deployments that have a replica or are starting one."""
    status = await asyncio.to_thread(serve.status)
    application = status.applications[serve.get_replica_context().app_name]
    return {
        name
        for name, deployment in application.deployments.items()
        if any(n for state, n in deployment.replica_states.items() if state != "STOPPING")
    }


async def first_endpoints(targets: Sequence[ServeTarget]) -> tuple[ServeTarget, Endpoints]:
    """The first target that is up, and its endpoints."""

    async def ask(target: ServeTarget) -> tuple[ServeTarget, Endpoints]:
        return target, await target.endpoints()

    asking = [asyncio.create_task(ask(target)) for target in targets]
    try:
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in asking:
            task.cancel()
