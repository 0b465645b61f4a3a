"""ASGI middleware that finds the caller of every request, or refuses it. It does not touch the events of a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.caller import (
    IN_CLUSTER,
    STATE,
    STRANGER,
    AccessOptions,
    Caller,
    StatusError,
    not_permitted,
    unknown_caller,
)
from app.access.key_file import TENANT_PATTERN
from app.access.keyring import Keyring
from app.access.quota import Allowance

OPEN = ("/health", "/ready", "/ping")  # probes have no key
METRICS = "/metrics"
READING = ("/v1/responses/", "/v1/streams/")  # of answers, which have their places until they end
VISIT = "visit"  # key of the ASGI scope's ``state``
TENANT = re.compile(TENANT_PATTERN.encode())


class Visit:
    """One request of a key from its beginning to its end, and the tokens reserved for it."""

    def __init__(self, allowance: Allowance, *, has_place: bool) -> None:
        self._allowance = allowance
        self._reserved = 0
        self._used: Callable[[], int] = int  # tokens
        self._has_place = has_place

    def reserve(self, tokens: int, used: Callable[[], int]) -> None:
        """Reserve the most tokens that the request can use; ``used`` returns at its end how many it used.

        Raises:
            StatusError: the key may not use so many, ever (400) or now (429).
        """
        self._allowance.reserve(tokens)
        self._reserved, self._used = tokens, used

    def headers(self) -> dict[str, str]:
        return self._allowance.headers()

    def settle(self) -> None:
        """Give back the reserved tokens that were not used."""
        self._allowance.give_back(self._reserved - self._used())
        self._reserved, self._used = 0, int

    def hand_over(self) -> Callable[[int], None]:
        """Keep the place and the reserved tokens beyond this request, for an answer that continues without it.

        Returns what ends them, given the tokens that the answer used.
        """
        reserved, self._reserved, self._used = self._reserved, 0, int
        self._has_place = False

        def settle(used: int) -> None:
            self._allowance.give_back(reserved - used)
            self._allowance.leave()

        return settle

    def end(self) -> None:
        self.settle()
        if self._has_place:
            self._allowance.leave()


def visit_of(scope: Mapping[str, Any]) -> Visit | None:
    """The visit of a request, by its ASGI scope; None if no key limits it."""
    visit: Visit | None = scope.get("state", {}).get(VISIT)
    return visit


class AccessGate:
    """Lets requests through with their caller in the ASGI scope's ``state``.

    ``answer`` builds the response to a refusal; ``pages`` are further paths that need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: AccessOptions,
        keyring: Keyring | None,
        answer: Callable[[Exception], Response],
        pages: Collection[str] = (),
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._header = (options.tenant_header or "").lower().encode()
        self._anybody = IN_CLUSTER if options.trust_clients else STRANGER
        self._open = {*OPEN, *pages, *((METRICS,) if options.open_metrics else ())}
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        state = scope.setdefault("state", {})
        visit: Visit | None = None
        try:
            try:
                state[STATE], allowance = self._who(scope, path)
                if path == METRICS and path not in self._open and not state[STATE].is_admin:
                    raise not_permitted("/metrics is for keys with admin set")
                if allowance is not None:
                    takes_place = not path.startswith(READING)
                    allowance.enter(takes_place=takes_place)
                    visit = state[VISIT] = Visit(allowance, has_place=takes_place)
            except StatusError as error:
                await self._answer(error)(scope, receive, send)
                return
            await self._app(scope, receive, send)
        finally:
            if visit is not None:
                visit.end()

    def _who(self, scope: Scope, path: str) -> tuple[Caller, Allowance | None]:
        if path in self._open:
            return STRANGER, None
        if self._keyring is not None:
            return self._keyring.find(_bearer(scope))
        if self._header:
            return self._tenant(scope), None
        return self._anybody, None

    def _tenant(self, scope: Scope) -> Caller:
        """The tenant that the gateway names. Its own namespace has its name."""
        given = _values(scope, self._header)
        name = self._header.decode()
        if len(given) != 1 or not TENANT.fullmatch(given[0]):
            wrong = "missing" if not given else "no tenant's name" if len(given) == 1 else "given more than once"
            raise unknown_caller(f"the header {name} is {wrong}; the gateway must set it", "invalid_tenant")
        tenant = given[0].decode()
        if self._anybody is IN_CLUSTER:
            return Caller(tenant=tenant, is_admin=False, limited_by="a gateway's tenant may not ask for it")
        own = frozenset((tenant,))
        return replace(STRANGER, tenant=tenant, namespaces=own, feeds=own, is_admin=False)


def _bearer(scope: Scope) -> bytes:
    given = _values(scope, b"authorization")
    if not given:
        raise unknown_caller("the header Authorization is missing; it must be: Bearer KEY", "missing_api_key")
    scheme, _, key = given[0].strip().partition(b" ")
    if len(given) > 1 or scheme.lower() != b"bearer" or not key.strip():
        raise unknown_caller("the header Authorization must be given once, as: Bearer KEY")
    return key.strip()


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]
