"""Errors in OpenAI's form, and the HTTP status of each error of the engine.

An unexpected exception is logged; the client only learns that there was one.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import msgspec
from starlette.responses import Response

from app.access.caller import AccessError
from app.telemetry.exchange import Refusal, current
from engine import errors

logger = logging.getLogger("spectra.api")

# Where clients write fields of the engine's requests, if not under the same name.
CLIENT_NAMES = {"method": "speculative.method", "max_nodes": "speculative.max_nodes"}
MAX_MESSAGE = 1000  # characters: what a client sent never comes back in full


class ApiError(Exception):
    """An error that arises at the edge, with its HTTP status."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


class ErrorAnswer(msgspec.Struct, frozen=True):
    """One error, ready to be sent."""

    status: int
    message: str
    param: str | None
    code: str | None
    headers: dict[str, str] = {}

    def body(self) -> bytes:
        """OpenAI's error object as JSON."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        message = self.message[:MAX_MESSAGE]
        fields: dict[str, Any] = {"message": message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": fields})

    def noted(self) -> ErrorAnswer:
        """The same; the access log says why the request is refused."""
        current().refusal = Refusal(self.status, self.code or "", self.param or "", self.message)
        return self

    def response(self) -> Response:
        """The error as an HTTP response."""
        return Response(self.body(), self.status, self.headers, "application/json")


def model_not_found(name: str) -> ApiError:
    """The 404 for a model that this server does not serve."""
    message = f"the model {name[:128]!r} is not served here; GET /v1/models lists the served models"
    return ApiError(404, message, code="model_not_found", param="model")


def answer_for(error: BaseException) -> ErrorAnswer:
    """The answer to a client for ``error``, noted for the access log; an unexpected error is logged."""
    return _answer(error).noted()


def _answer(error: BaseException) -> ErrorAnswer:
    match error:
        case ApiError():
            return ErrorAnswer(error.status, error.message, error.param, error.code)
        case AccessError():
            return ErrorAnswer(error.status, str(error), error.param, error.code, error.headers)
        case errors.UnknownMethodError():
            return ErrorAnswer(400, str(error), CLIENT_NAMES["method"], "unknown_method")
        case errors.PromptTooLongError():
            return ErrorAnswer(400, str(error), error.param, "context_length_exceeded")
        case errors.RequestError():
            param = CLIENT_NAMES.get(error.param or "", error.param)
            return ErrorAnswer(400, str(error), param, "invalid_request")
        case errors.OverloadedError():
            seconds = str(max(1, math.ceil(error.retry_after)))
            return ErrorAnswer(429, str(error), None, "overloaded", {"Retry-After": seconds})
        case errors.ModelChangedError():
            return ErrorAnswer(503, str(error), None, "model_changed", {"Retry-After": "1"})
        case errors.TargetLostError():
            return ErrorAnswer(503, str(error), None, "target_lost", {"Retry-After": "1"})
    logger.error("request failed", exc_info=error)
    return ErrorAnswer(500, "internal error; the server's log has the details", None, "internal_error")
