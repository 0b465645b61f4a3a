"""The ingress as a Serve deployment: the HTTP edge over a router handle. ``app`` brings the edge itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

from ray.serve.handle import DeploymentHandle

from deployments.ingress.client import RouterClient
from deployments.ingress.request_header import bound_request_ids
from deployments.submission.client import PATIENCE_S


class HostedApplication(Protocol):
    """What an ingress replica hosts."""

    app: Any  # the ASGI application

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """One request without HTTP: a request body in, a response body out."""

    def generate_stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The same, chunk by chunk."""


class Ingress:
    """One HTTP replica; keeps no state beyond its requests, so that replicas can be added.

    Args:
        router: handle of the router deployment.
        make_edge: builds the edge where it runs; must be importable by name.
        options: handed to ``make_edge``.
        patience: seconds a request waits for a router that is being replaced.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits async constructors
        self,
        router: DeploymentHandle,
        make_edge: Callable[[RouterClient, Any], HostedApplication],
        options: Any,
        patience: float = PATIENCE_S,
    ) -> None:
        self._client = RouterClient(router, await router.card.remote(), patience)
        bound_request_ids()
        self._edge = make_edge(self._client, options)
        await self._client.agree()

    def __serve_build_asgi_app__(self) -> Any:
        """Serve asks for the ASGI application once the constructor is done."""
        return self._edge.app

    async def check_health(self) -> None:
        """Serve calls this periodically, and replaces the replica when it fails.

        Raises:
            ModelChangedError: the router's model has another tokenizer than this replica's edge.
        """
        await self._client.look()

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """``serve.get_app_handle("spectra").generate.remote({...})``."""
        return await self._edge.generate(body)

    async def generate_stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """``handle.options(stream=True).generate_stream.remote({...})``."""
        async with aclosing(self._edge.generate_stream(body)) as chunks:
            async for chunk in chunks:
                yield chunk
