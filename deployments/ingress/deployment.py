"""The ingress as a Serve deployment: hosts the HTTP application, which ``app`` builds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

from ray.serve._private import http_util
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.answers.client import AnswerKeeperClient
from deployments.ingress.client import RouterClient
from deployments.observability.logs import REQUEST_ID_HEADER, choose_request_id
from deployments.submission.client import PATIENCE_S
from deployments.submission.messages import ModelCard


class HostedApplication(Protocol):
    """Application that an ingress replica hosts."""

    app: Any  # the ASGI application

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """One request without HTTP: a request body in, a response body out."""

    def generate_stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The same, chunk by chunk."""


class RequestIdMiddleware:
    """ASGI middleware in place of Serve's, which would log and return any ``X-Request-Id`` that a client sends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Replace an id that is not safe to log, then serve the request."""
        if scope["type"] == "http":
            headers = MutableHeaders(scope=scope)
            headers[REQUEST_ID_HEADER] = choose_request_id(headers.get(REQUEST_ID_HEADER))
        await self._app(scope, receive, send)


class Ingress:
    """One HTTP replica; its only state are its running requests, so replicas can be added freely.

    Args:
        router: handle of the router deployment.
        load_edge: called in a thread; loads what the application needs, and returns its factory. Importable by name.
        options: passed to ``load_edge``.
        patience: seconds a request waits for a router, or an answer keeper, that is being replaced.
        keeper: handle of the answer keeper's deployment; None: no answers are kept.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits async constructors
        self,
        router: DeploymentHandle,
        load_edge: Callable[[Any], Callable[[RouterClient, AnswerKeeperClient | None], HostedApplication]],
        options: Any,
        patience: float = PATIENCE_S,
        keeper: DeploymentHandle | None = None,
    ) -> None:
        # The router is up seconds later than this process, which loads its tokenizer meanwhile.
        make_edge, card = await asyncio.gather(asyncio.to_thread(load_edge, options), _card_of(router))
        self._client = RouterClient(router, card, patience)
        http_util.RequestIdMiddleware = RequestIdMiddleware  # Serve starts the replica's HTTP server after this
        self._edge = make_edge(self._client, None if keeper is None else AnswerKeeperClient.over(keeper, patience))
        await self._client.agree_on_tokenizer()

    def __serve_build_asgi_app__(self) -> Any:
        """Serve calls this after the constructor."""
        return self._edge.app

    async def check_health(self) -> None:
        """Serve calls this periodically, and replaces the replica when it raises.

        Raises:
            ModelChangedError: the router's model has another tokenizer than this replica.
        """
        await self._client.check_model()

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """``serve.get_app_handle("spectra").generate.remote({...})``."""
        return await self._edge.generate(body)

    async def generate_stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """``handle.options(stream=True).generate_stream.remote({...})``."""
        async with aclosing(self._edge.generate_stream(body)) as chunks:
            async for chunk in chunks:
                yield chunk


async def _card_of(router: DeploymentHandle) -> ModelCard:
    card: ModelCard = await router.card.remote()
    return card
