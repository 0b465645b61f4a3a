"""The queries of addresses: parameters of GET requests."""

from __future__ import annotations

from starlette.requests import Request

from engine.errors import RequestError

MAX_EVENTS = 2**31 - 1


def read_query(request: Request, *known: str) -> dict[str, str]:
    """The query of a request; raises RequestError for parameters that are not known."""
    if unknown := next((name for name in request.query_params if name not in known), None):
        raise RequestError(f"{unknown[:64]} is no parameter of this endpoint; it has {', '.join(known)}", unknown[:64])
    return dict(request.query_params)


def read_flag(query: dict[str, str], name: str) -> bool:
    given = query.get(name, "false").lower()
    if given not in ("true", "false"):
        raise RequestError(f"{name} is {given[:32]!r}; it must be true or false", name)
    return given == "true"


def read_number(query: dict[str, str], name: str) -> int:
    """The number of an event; -1 if none is given."""
    given = query.get(name, "-1")
    if given != "-1" and not (given.isascii() and given.isdigit() and len(given) < 10):
        raise RequestError(f"{name} is {given[:32]!r}; it must be a number from 0 to {MAX_EVENTS}", name)
    return int(given)
