"""The router's client of one target deployment: connects to its pipeline, and reports a pipeline that hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import ray
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.leadership import INCARNATION, SupersededError, exit_superseded
from deployments.router.lane_connection import RECONNECT_S, TargetClient
from engine.errors import ConfigError, TargetLostError
from engine.target.info import TargetInfo

ANSWER_S = 10.0  # seconds to wait for a target's endpoints before asking again
MISCONFIGURED_S = (
    5.0  # pause before asking a target again that the configured transport does not reach, or that is another one
)

logger = logging.getLogger(__name__)


class ServeTarget:
    """One target deployment of one replica.

    Args:
        handle: of the deployment.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self.name = handle.deployment_name
        self.trouble = ""  # why its pipeline cannot be used; shown in health
        self.is_another = False  # its pipeline runs another model, or runs it in another way
        self._handle = handle

    def client(self, info: TargetInfo) -> TargetClient:
        """What a lane needs of it, for a router that is ready to serve the target that ``info`` describes."""
        return TargetClient(self.name, partial(self.connect, info, ready=True), self.report_hang)

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
                    endpoints: Endpoints = await self._handle.endpoints.remote(node, INCARNATION, ready)
                    return endpoints
            except SupersededError as error:
                exit_superseded(error)
            except ConfigError as error:
                raise ConfigError(_message(error)) from error
            except (RayError, RayServeException, TimeoutError) as error:
                logger.info("%s does not answer yet: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)

    async def connect(self, info: TargetInfo, ready: bool = False) -> Pipeline:
        """Connect to its pipeline, as soon as there is one.

        Raises:
            ConfigError: like ``endpoints``, or the pipeline's target is not the one that ``info`` describes; a router
                that is ``ready`` logs it once and keeps trying instead.
        """
        while True:
            try:
                endpoints = await self.endpoints(ready)
                self._check(info, endpoints.info)
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
