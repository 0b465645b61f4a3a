"""Who sent a request, what its fields may ask for, and the refusals of what they may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

MOST = 2**31 - 1  # the last priority
STATE = "caller"  # key of the ASGI scope's ``state``: ``request.state.caller``


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """At most one of ``api_keys``, ``tenant_header`` and ``trust_clients`` decides who callers are and their rights."""

    api_keys: str | None = None  # path of the key file
    tenant_header: str | None = None  # set by a gateway
    trust_clients: bool = False
    open_metrics: bool = False
    cors_origins: tuple[str, ...] = ()
    replicas: int = 1  # processes that share the limits of a key


class StatusError(Exception):
    """An error that the edge answers with its own HTTP status, such as 401, 403 or 429 for a caller."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers = dict(headers or {})


def not_permitted(message: str, param: str | None = None) -> StatusError:
    return StatusError(403, message, code="not_permitted", param=param)


def unknown_caller(message: str, code: str = "invalid_api_key") -> StatusError:
    return StatusError(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})


def too_much(message: str, seconds: float) -> StatusError:
    """The 429 for a caller that may retry after ``seconds``."""
    return StatusError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(max(1, ceil(seconds)))})


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and what it may ask for; a set of names that is None permits all of them.

    ``limited_by`` ends the sentence of a refusal, as in "priority is -1, but key k1 may not ask for it".
    """

    tenant: str = ""  # authenticated; tenants share nothing; "": anonymous
    key_id: str = ""  # for logs and metrics; "": no key
    namespaces: frozenset[str] | None = None  # requests may draft from their texts, in addition to the shared ones
    feeds: frozenset[str] | None = None  # namespaces that may learn from the answers to its requests
    first_priority: int = -MOST - 1  # lower goes first
    last_priority: int = MOST
    methods: frozenset[str] | None = None  # drafting methods that requests may name; all have the default
    max_nodes: int | None = None  # drafted nodes per step; None: the server's limit
    is_admin: bool = True  # may read /metrics, and see drafts, which may be texts of others
    names_tenant: bool = False  # a request's ``user`` names the tenant in the queue
    limited_by: str = ""

    def may_name(self, method: str) -> bool:
        """Whether a request of this caller may name the method, or several joined by ``+``."""
        return self.methods is None or self.methods.issuperset(map(str.strip, method.split("+")))

    def check(self, *, priority: int, namespace: str, trace: bool, method: str, nodes: int | None) -> None:
        """Raises StatusError (403) if a request of this caller may not have one of these values."""
        is_permitted = {
            f"priority is {priority}": self.first_priority <= priority <= self.last_priority,
            f"speculative.namespace is {namespace!r}": not namespace
            or self.namespaces is None
            or namespace in self.namespaces,
            "speculative.trace is true": not trace or self.is_admin,
            f"speculative.method is {method[:64]!r}": not method or self.may_name(method),
            f"speculative.max_nodes is {nodes}": nodes is None or self.max_nodes is None or nodes <= self.max_nodes,
        }
        for claim, permitted in is_permitted.items():
            if not permitted:
                limit = f"; it must be at most {self.max_nodes}" if "max_nodes" in claim else ""
                raise not_permitted(f"{claim}, but {self.limited_by}{limit}", claim.partition(" ")[0])


IN_CLUSTER = Caller(names_tenant=True)
"""Callers of Ray handles, and all clients of a server that trusts them."""

STRANGER = Caller(
    namespaces=frozenset(),
    first_priority=0,
    last_priority=0,
    limited_by="this server takes it from no client (trust_clients is false)",
)
"""A client of a server that asks for no keys: it gets the defaults."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The caller of a request, by its ASGI scope; STRANGER if the gate has not set one."""
    caller: Caller = scope.get("state", {}).get(STATE, STRANGER)
    return caller
