"""Refusals of callers, with the HTTP status of each."""

from __future__ import annotations

from collections.abc import Mapping


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
