"""Calls of Serve's handles, and how it shows that one gets no answer. Knows no deployment."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc.aio import AioRpcError
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentResponse

from engine.errors import TargetLostError

GONE = (RayError, RayServeException, AioRpcError)  # how the loss of a replica shows, by calls of Ray and of gRPC


async def answer_of(response: DeploymentResponse) -> Any:
    """Await a call; one that is given up is cancelled, or else Serve counts it on, and scales by it.

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
