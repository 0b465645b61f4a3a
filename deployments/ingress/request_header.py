"""Serve's own handling of ``X-Request-Id``, bounded: Serve would log and return whatever a client sends."""

from __future__ import annotations

from ray.serve._private import http_util
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.observability.request_id import HEADER, request_id_of


class BoundedRequestId:
    """ASGI middleware in place of Serve's: a request gets an id that is fit for a log, which the edge returns."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "http":
            headers = MutableHeaders(scope=scope)
            headers[HEADER] = request_id_of(headers.get(HEADER))
        await self._app(scope, receive, send)


def bound_request_ids() -> None:
    """Have the HTTP server of this replica, which starts once the replica is built, use ``BoundedRequestId``."""
    http_util.RequestIdMiddleware = BoundedRequestId
