"""A target deployment as the router sees it: where its pipeline listens, and whom to tell when it hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import ray
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.pipeline.connection import Endpoints, Pipeline
from deployments.pipeline.leadership import INCARNATION, SupersededError, leave
from deployments.router.lane import RECONNECT_S
from deployments.router.lane_observer import Home
from engine.errors import ConfigError, TargetLostError

ANSWER_S = 10.0  # seconds a target has to say where it listens, before it is asked again
MISCONFIGURED_S = 5.0  # pause before one is that cannot be reached as it was configured

logger = logging.getLogger(__name__)


class TargetHome:
    """One target deployment of one replica.

    Args:
        handle: of the deployment.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self.name = handle.deployment_name
        self.trouble = ""  # why it can never be reached as things are; for operators
        self._handle = handle

    def home(self) -> Home:
        """As a lane of a router that is ready to serve wants it."""
        return Home(self.name, partial(self.connect, ready=True), self.suspect)

    async def endpoints(self, ready: bool = False) -> Endpoints:
        """Where it listens, as soon as it does; Serve may still name a replica that is dead.

        Once this router is ``ready``, earlier ones are shut out.

        Raises:
            ConfigError: it cannot be reached from here as it is configured.
        """
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    node = ray.get_runtime_context().get_node_id()
                    endpoints: Endpoints = await self._handle.endpoints.remote(node, INCARNATION, ready)
                    return endpoints
            except SupersededError as error:
                leave(error)
            except ConfigError as error:
                raise ConfigError(_plain(error)) from error
            except (RayError, RayServeException, TimeoutError) as error:
                logger.info("%s is not there yet: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)

    async def connect(self, ready: bool = False) -> Pipeline:
        """A pipeline, as soon as there is one.

        Raises:
            ConfigError: like ``endpoints``; but a router that is ``ready`` says so once, and hopes for the next target.
        """
        while True:
            try:
                pipeline = await Pipeline.connect(await self.endpoints(ready))
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

    def _complain(self, trouble: str) -> None:
        if trouble != self.trouble:
            logger.error("%s cannot be used: %s", self.name, trouble)
        self.trouble = trouble

    async def suspect(self, reason: str) -> None:
        """Let it look whether its stages still live, now and not at the next health check."""
        await self._handle.suspect.remote(reason)


def _plain(error: ConfigError) -> str:
    """Without the traceback that Ray wraps it in."""
    return str(error.cause if isinstance(error, RayTaskError) else error)


async def first_endpoints(homes: Sequence[TargetHome]) -> tuple[TargetHome, Endpoints]:
    """The first target that is up, whichever it is."""

    async def of(home: TargetHome) -> tuple[TargetHome, Endpoints]:
        return home, await home.endpoints()

    asking = [asyncio.create_task(of(home)) for home in homes]
    try:
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in asking:
            task.cancel()
