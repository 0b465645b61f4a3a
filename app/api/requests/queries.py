"""The queries of addresses: parameters of GET requests."""

from __future__ import annotations

from starlette.requests import Request

from engine.errors import RequestError

MAX_EVENTS = 999_999_999


def read_query(request: Request, *known: str) -> dict[str, str]:
    """The query of a request; raises RequestError for parameters that are not known."""
    if unknown := next((name for name in request.query_params if name not in known), None):
        raise RequestError(
            f"{unknown[:64]} is not a parameter of this endpoint; it has {', '.join(known)}", unknown[:64]
        )
    return dict(request.query_params)


def read_flag(query: dict[str, str], name: str) -> bool:
    given = query.get(name, "false").lower()
    if given not in ("true", "false"):
        raise RequestError(f"{name} is {given[:32]!r}; it must be true or false", name)
    return given == "true"


def read_number(query: dict[str, str], name: str) -> int | None:
    """The number of an event; None: the query has none."""
    given = query.get(name)
    if given is not None and not (given.isascii() and given.isdigit() and int(given[:10]) <= MAX_EVENTS):
        raise RequestError(f"{name} is {given[:32]!r}; it must be a number from 0 to {MAX_EVENTS}", name)
    return None if given is None else int(given)
