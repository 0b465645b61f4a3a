"""From the bytes of a body to a checked schema, or an error that names the field, its value and the right values."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from app.api.errors import ApiError
from engine.errors import RequestError

Schema = TypeVar("Schema", bound="Strict")
DRAIN_FACTOR = 16  # times the limit is read and dropped before the connection is given up
BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
TYPES = {"model_type": "must be an object", "int_type": "must be an integer", "int_from_float": "must be an integer"}


def refuse(message: str) -> PydanticCustomError:
    """A violation; ``message`` follows the field's name, such as "must be ..."."""
    return PydanticCustomError("refused", "{text}", {"text": message})


class Strict(BaseModel):
    """The base of all schemas: no unknown fields, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    # OpenAI's fields that this server cannot honour, and their values that ask for nothing.
    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, at most ``limit`` bytes.

    Bytes beyond the limit are read and dropped, because a client that is still sending would not see the answer.

    Raises:
        ApiError: 415 for a media type other than JSON, 413 for a body above the limit.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(
            415,
            f"Content-Type is {media_type or 'missing'}; it must be application/json",
            code="unsupported_media_type",
        )
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
            if size > DRAIN_FACTOR * limit:
                break
    if size > limit:
        raise ApiError(413, f"the body has more than {limit} bytes", code="body_too_large")
    return b"".join(chunks)


def parse(schema: type[Schema], body: bytes) -> Schema:
    """Decode and check ``body``; a null is an absent field, as in OpenAI's API.

    Raises:
        RequestError: malformed JSON, an unknown or unsupported field, or a value out of range.
    """
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    return validated(schema, fields)


def validated(schema: type[Schema], fields: Any) -> Schema:
    """Check decoded fields.

    Raises:
        RequestError: as ``parse``.
    """
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object")
    try:
        return schema.model_validate(_known_fields(schema, fields))
    except ValidationError as error:
        raise _request_error(error.errors(include_url=False)[0]) from None


def _known_fields(schema: type[Strict], fields: dict[str, Any]) -> dict[str, Any]:
    """Fields that the schema declares; refuses others unless their value asks for nothing."""
    known = {}
    for name, value in fields.items():
        if name in schema.model_fields:
            if value is not None:
                known[name] = value
        elif name not in schema.unsupported:
            raise RequestError(f"unknown field {_shorten(name)}", name[:64])
        elif value is not None and value not in schema.unsupported[name]:
            raise RequestError(f"{name} is {_shorten(value)}; this server does not support it: leave it out", name)
    return known


def _request_error(details: ErrorDetails) -> RequestError:
    param = ""
    for part in details["loc"]:
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else str(part)
    kind, context = details["type"], details.get("ctx", {})
    if not param:
        return RequestError(details["msg"], details["msg"].partition(" ")[0])
    if kind == "missing":
        return RequestError(f"{param} is missing", param)
    if kind == "extra_forbidden":
        return RequestError(f"unknown field {param}", param)
    if kind == "refused":
        return RequestError(f"{param} {details['msg']}", param)
    return RequestError(
        f"{param} is {_shorten(details['input'])}; it {_expected(kind, context, details['msg'])}", param
    )


def _expected(kind: str, context: dict[str, Any], message: str) -> str:
    """The broken rule, as a phrase that follows "it"."""
    if kind in BOUNDS:
        name, words = BOUNDS[kind]
        return f"must be {words} {context[name]}"
    if kind in ("too_short", "too_long"):
        bound = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        return f"must have {bound} items" if bound != "at least 1" else "must have at least 1 item"
    return TYPES.get(kind) or message.replace("Input should", "must").replace("valid ", "")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:60] + " ..."
