"""Calls to Ray Serve that several deployments share."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc.aio import AioRpcError
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from engine.errors import ConfigError, TargetLostError

LOST_REPLICA_ERRORS = (RayError, RayServeException, AioRpcError)  # over Ray's transport and over gRPC


async def await_response(response: DeploymentResponse) -> Any:
    """Await a call, and cancel it when this task is cancelled: Serve would count it on, and scale by it.

    Raises:
        TargetLostError: Serve has cancelled the call, and not this task.
    """
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TargetLostError("Serve has cancelled the call") from None


async def call_replica(handle: DeploymentHandle, peer: str, method: str, *arguments: Any, timeout: float) -> Any:
    """Call a method of a deployment, and return its answer.

    Raises:
        TargetLostError: ``peer`` does not answer within ``timeout`` seconds, or its replica was lost.
    """
    try:
        async with asyncio.timeout(timeout):
            return await await_response(handle.options(method_name=method).remote(*arguments))
    except (*LOST_REPLICA_ERRORS, TimeoutError) as error:
        raise TargetLostError(f"{peer} does not answer: {type(error).__name__}") from error


def check_single_replica(instead: str) -> None:
    """Refuse a deployment with several replicas; the constructor of a stateful deployment calls this.

    Args:
        instead: how to scale the deployment, for the message.

    Raises:
        ConfigError: Serve is configured to run several replicas.
    """
    replica = serve.get_replica_context()
    if replica.world_size > 1:
        raise ConfigError(f"{replica.deployment}.num_replicas is {replica.world_size}; it must be 1: {instead}")
