"""Who sent a request: found once per HTTP request by the edge, and decides what its fields may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.access.errors import not_permitted

MOST = 2**31 - 1  # the last priority
STATE = "caller"  # key of the ASGI scope's ``state``: ``request.state.caller``
NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and what it may ask for; None as a set of names: all of them.

    ``limited_by`` ends the sentence of a refusal, as in "priority is -1, but key k1 may not ask for it".
    """

    tenant: str = ""  # authenticated: nothing of this tenant is shared with another; "": anonymous
    key_id: str = ""  # of the key, for logs and metrics; "": no key
    namespaces: frozenset[str] | None = None  # whose texts its requests may be drafted from, besides the shared ones
    feeds: frozenset[str] | None = None  # namespaces that may learn from the answers to its requests
    first_priority: int = -MOST - 1  # lower goes first
    last_priority: int = MOST
    methods: frozenset[str] | None = None  # of speculation, that its requests may name; all have the default
    max_nodes: int | None = None  # drafted nodes per step; None: the server's limit
    is_admin: bool = True  # may read /metrics, and see drafts, which may be texts of others
    names_tenant: bool = False  # a request's ``user`` names the tenant in the queue
    limited_by: str = ""

    def check_priority(self, priority: int) -> None:
        """Raises AccessError (403) if a request of this caller may not have the priority."""
        if not self.first_priority <= priority <= self.last_priority:
            raise not_permitted(f"priority is {priority}, but {self.limited_by}", "priority")

    def may_name(self, method: str) -> bool:
        """Whether a request of this caller may name the method, several joined by ``+``."""
        return self.methods is None or self.methods.issuperset(map(str.strip, method.split("+")))

    def check_method(self, method: str) -> None:
        """Raises AccessError (403) if a request of this caller may not name the method, several joined by ``+``."""
        if method and not self.may_name(method):
            message = f"speculative.method is {method[:64]!r}, but {self.limited_by}"
            raise not_permitted(message, "speculative.method")

    def check_nodes(self, n: int | None) -> None:
        """Raises AccessError (403) if a request of this caller may not draft so many nodes per step."""
        if n is not None and self.max_nodes is not None and n > self.max_nodes:
            message = f"speculative.max_nodes is {n}, but {self.limited_by}; at most {self.max_nodes} are"
            raise not_permitted(message, "speculative.max_nodes")

    def check_namespace(self, namespace: str) -> None:
        """Raises AccessError (403) if a request of this caller may not be drafted from the namespace's texts."""
        if namespace and self.namespaces is not None and namespace not in self.namespaces:
            message = f"speculative.namespace is {namespace!r}, but {self.limited_by}"
            raise not_permitted(message, "speculative.namespace")

    def check_trace(self) -> None:
        """Raises AccessError (403) if this caller may not see what was drafted."""
        if not self.is_admin:
            raise not_permitted(f"speculative.trace is true, but {self.limited_by}", "speculative.trace")


IN_CLUSTER = Caller(names_tenant=True)
"""Callers of Ray handles, and all clients of a server that trusts them: what they say counts."""

STRANGER = Caller(
    namespaces=NO_NAMES,
    first_priority=0,
    last_priority=0,
    limited_by="this server takes it from no client (trust_clients is false)",
)
"""A client of a server that asks for no keys: it gets the defaults."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The caller of a request, by its ASGI scope; STRANGER if nothing has looked for one."""
    caller: Caller = scope.get("state", {}).get(STATE, STRANGER)
    return caller
