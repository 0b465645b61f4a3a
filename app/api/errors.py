"""Errors in OpenAI's form, and the HTTP status of each error of the engine."""

from __future__ import annotations

import logging
import math

import msgspec
from starlette.responses import Response

from app.access.caller import StatusError
from app.api.requests.parsing import CLIENT_NAMES
from app.telemetry.exchange import Refusal, current
from engine import errors

logger = logging.getLogger("spectra.api")

MAX_MESSAGE = 1000  # characters: a client's value is never returned in full


def error_body(error: BaseException) -> bytes:
    """OpenAI's error object as JSON."""
    answer = status_error(error)
    kind = "server_error" if answer.status >= 500 else "invalid_request_error"
    kind = "rate_limit_error" if answer.status == 429 else kind
    fields = {"message": str(answer)[:MAX_MESSAGE], "type": kind, "param": answer.param, "code": answer.code}
    return msgspec.json.encode({"error": fields})


def error_response(error: BaseException) -> Response:
    answer = status_error(error)
    return Response(error_body(answer), answer.status, answer.headers, "application/json")


def status_error(error: BaseException) -> StatusError:
    """How ``error`` is answered, noted for the access log; an unexpected one is logged and not shown to the client."""
    answer = _answer(error)
    current().refusal = Refusal(answer.status, answer.code or "", answer.param or "", str(answer))
    return answer


def _answer(error: BaseException) -> StatusError:
    match error:
        case StatusError():
            return error
        case errors.UnknownMethodError():
            return StatusError(400, str(error), code="unknown_method", param=CLIENT_NAMES["method"])
        case errors.AnswerNotFoundError():
            return StatusError(404, str(error), code="not_found")
        case errors.AnswerCancelledError():
            return StatusError(409, str(error), code="cancelled")
        case errors.PromptTooLongError():
            return StatusError(400, str(error), code="context_length_exceeded", param=error.param)
        case errors.RequestError():
            param = CLIENT_NAMES.get(error.param or "", error.param)
            return StatusError(400, str(error), code="invalid_request", param=param)
        case errors.OverloadedError():
            seconds = str(max(1, math.ceil(error.retry_after)))
            return StatusError(429, str(error), code="overloaded", headers={"Retry-After": seconds})
        case errors.ModelChangedError():
            return StatusError(503, str(error), code="model_changed", headers={"Retry-After": "1"})
        case errors.TargetLostError():
            return StatusError(503, str(error), code="target_lost", headers={"Retry-After": "1"})
    logger.error("request failed", exc_info=error)
    return StatusError(500, "internal error; the server's log has the details", code="internal_error")
