"""Refusals of callers, with the HTTP status of each."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil


class AccessError(Exception):
    """A caller is unknown (401), may not ask for this (403) or has asked for too much (429)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def not_permitted(message: str, param: str | None = None) -> AccessError:
    """The 403 for what a caller may not ask for."""
    return AccessError(403, message, code="not_permitted", param=param)


def unknown_caller(message: str, code: str = "invalid_api_key") -> AccessError:
    """The 401 for a request whose sender is not known."""
    return AccessError(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})


def too_much(message: str, seconds: float) -> AccessError:
    """The 429 for a caller that may ask again in so many seconds."""
    return AccessError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(max(1, ceil(seconds)))})
