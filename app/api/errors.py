"""Errors in OpenAI's form, and the HTTP status of each error of the engine."""

from __future__ import annotations

import logging
import math
from typing import Any

import msgspec
from starlette.responses import Response

from app.access.caller import StatusError
from app.telemetry.exchange import Refusal, current
from engine import errors

logger = logging.getLogger("spectra.api")

# Clients' names of the fields of the engine's requests, where they differ.
CLIENT_NAMES = {"method": "speculative.method", "max_nodes": "speculative.max_nodes"}
MAX_MESSAGE = 1000  # characters: a client's value is never returned in full


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The answer to one error."""

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
        """Returns itself, after the access log was given the reason."""
        current().refusal = Refusal(self.status, self.code or "", self.param or "", self.message)
        return self

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, "application/json")


def model_not_found(name: str) -> StatusError:
    message = f"the model {name[:128]!r} is not served here; GET /v1/models lists the served models"
    return StatusError(404, message, code="model_not_found", param="model")


def answer_for(error: BaseException) -> ErrorAnswer:
    """The answer for ``error``, noted for the access log; an unexpected error is logged and not shown to the client."""
    return _answer(error).noted()


def _answer(error: BaseException) -> ErrorAnswer:
    match error:
        case StatusError():
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
