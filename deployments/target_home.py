"""A target deployment as the router sees it: where its pipeline listens, and whom to tell when it hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.fence import ROUTER_EPOCH, SupersededError, leave
from deployments.lane import RECONNECT_S, Home
from deployments.pipeline import Endpoints, Pipeline
from engine.errors import TargetLostError

ANSWER_S = 10.0  # seconds a target has to say where it listens, before it is asked again

logger = logging.getLogger(__name__)


class TargetHome:
    """One target deployment of one replica.

    Args:
        handle: of the deployment.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self.name = handle.deployment_name
        self._handle = handle

    def home(self) -> Home:
        """As a lane wants it."""
        return Home(self.name, self.connect, self.suspect)

    async def endpoints(self) -> Endpoints:
        """Where it listens, as soon as it does; Serve may still name a replica that is dead."""
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    node = ray.get_runtime_context().get_node_id()
                    endpoints: Endpoints = await self._handle.endpoints.remote(node, ROUTER_EPOCH)
                    return endpoints
            except SupersededError as error:
                leave(error)
            except (RayError, RayServeException, TimeoutError) as error:
                logger.info("%s is not there yet: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)

    async def connect(self) -> Pipeline:
        """A pipeline, as soon as there is one."""
        while True:
            try:
                return await Pipeline.connect(await self.endpoints())
            except TargetLostError as error:
                logger.info("no pipeline of %s yet: %s", self.name, error)
                await asyncio.sleep(RECONNECT_S)

    async def suspect(self, reason: str) -> None:
        """Let it look whether its stages still live, now and not at the next health check."""
        await self._handle.suspect.remote(reason)


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
