"""Gives every HTTP request an id, which its answer returns, and a line in the access log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.caller import caller_of
from app.api.requests.declined_fields import DECLINED
from app.api.requests.responses import ResponsesRequest
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from app.telemetry.access_log import AccessLog
from app.telemetry.exchange import OTHER, LoggedFields
from deployments.observability.logs import REQUEST_ID_HEADER

BODIES = (ChatCompletionRequest, CompletionRequest, ResponsesRequest, TokenizeRequest, DetokenizeRequest)
WITHOUT_TEXT = {int, float, bool, type(None), Literal}  # kinds of values that hold no text of a client
NAMES = {"model", "speculative.method"}  # texts that operators need, and that are not secret


class Observed:
    """ASGI middleware around all others."""

    def __init__(self, app: ASGIApp, log: AccessLog, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = routes
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and log it when its answer has been sent or its client has gone."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope)
        exchange = self._log.begin(
            scope["method"], scope["path"], given.get(REQUEST_ID_HEADER), given.get("traceparent")
        )
        exchange.route = next((r.path_format for r in self._routes if r.matches(scope)[0] is not Match.NONE), OTHER)
        scope.setdefault("state", {})  # shared with inner middleware, which finds the caller
        returned = (REQUEST_ID_HEADER.lower().encode(), exchange.request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message.get("headers", ()), returned]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            caller = caller_of(scope)
            exchange.tenant, exchange.key_id = exchange.tenant or caller.tenant, caller.key_id
            exchange.account = caller.tenant
            self._log.end(exchange)


def request_fields() -> LoggedFields:
    """The fields of all bodies, and those whose values may be logged."""
    known, shown = set[str](), set(NAMES)
    for body in BODIES:
        known |= DECLINED.get(body.endpoint, {}).keys()
        _collect("", body, known, shown)
    return LoggedFields(frozenset(known), frozenset(shown))


def _collect(prefix: str, schema: type[BaseModel], known: set[str], shown: set[str]) -> None:
    for name, info in schema.model_fields.items():
        field, kinds = prefix + name, _kinds(info.annotation)
        known.add(field)
        if kinds <= WITHOUT_TEXT:
            shown.add(field)
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                _collect(f"{field}.", kind, known, set() if list in kinds else shown)  # of lists, no value is shown


def _kinds(annotation: Any) -> set[Any]:
    origin = get_origin(annotation)
    if origin is None or origin is Literal:
        return {origin or annotation}
    inner = get_args(annotation)[:1] if hasattr(annotation, "__metadata__") else get_args(annotation)
    outer = {origin} if isinstance(origin, type) and origin in (list, dict, tuple) else set[Any]()
    return outer.union(*map(_kinds, inner))
