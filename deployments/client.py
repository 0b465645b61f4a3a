"""The ingress's end of the router: requests go in, step events come out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from grpc.aio import AioRpcError
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.messages import Health, ModelCard, SubmitRequest, decode_item, encode_request
from engine.errors import TargetLostError
from engine.events import StepEvent
from engine.sampling.params import SamplingParams

ANSWER_S = 5.0  # a router that does not answer so long is not healthy
GONE = (RayError, RayServeException, AioRpcError)  # how the loss of a replica shows, by calls of Ray and of gRPC


class RouterClient:
    """Implements the edge's backend over a Serve handle."""

    def __init__(self, router: DeploymentHandle, card: ModelCard) -> None:
        self._router = router
        self._stream = router.options(stream=True, method_name="stream")
        self._card = card

    @property
    def model_card(self) -> ModelCard:
        """The served model."""
        return self._card

    async def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        method: str | None,
        max_nodes: int | None,
        priority: int,
        request_id: str,
        namespace: str = "",
    ) -> AsyncGenerator[StepEvent, None]:
        """Start one choice; engine errors come from the stream's first item."""
        return self._events(SubmitRequest(request_id, prompt_ids, params, method, max_nodes, priority, namespace))

    async def _events(self, request: SubmitRequest) -> AsyncGenerator[StepEvent, None]:
        items = self._stream.remote(encode_request(request))
        try:
            async for raw in items:
                yield decode_item(raw)
        except GONE as error:
            raise TargetLostError(f"the router is gone: {type(error).__name__}") from error
        finally:
            items.cancel()  # harmless after the end

    async def health(self) -> Health:
        """The router's own word; not ready when it does not answer."""
        with contextlib.suppress(TargetLostError):
            health: Health = await self._answer("health")
            return health
        return Health(ok=False, reason="the router does not answer")

    async def metrics_text(self) -> str:
        """Prometheus exposition text of the router; raises TargetLostError when it does not answer."""
        text: str = await self._answer("metrics")
        return text

    async def _answer(self, method: str) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._router.options(method_name=method).remote()
        except (*GONE, TimeoutError) as error:
            raise TargetLostError(f"the router does not answer: {type(error).__name__}") from error
