"""From the bytes of a body to a checked schema, or an error that names the field, its value and what is allowed."""

from __future__ import annotations

import re
import reprlib
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from app.api.requests.declined_fields import DECLINED
from engine.errors import PromptTooLongError, RequestError

Schema = TypeVar("Schema", bound="Strict")
SMALL = 16_384  # bytes that are parsed within 2 ms, whatever they hold
MAX_NESTED = 65_536  # strings, arrays and objects of a body
MAX_DIGITS = 128  # of a number; Python takes quadratic time to read them
MAX_EXACT = 2**53  # doubles have all integers up to it
MAX_SHOWN = 64  # characters of a client's value in an error
DIGITS = bytes.maketrans(b"123456789", b"000000000")
CLIENT_NAMES = {"method": "speculative.method", "max_nodes": "speculative.max_nodes"}
"""Clients' names of the fields of the engine's requests, where they differ."""
EXPECTED = {  # by pydantic's type of error, with the names of the error's context
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} item",  # it is 1 in all schemas
    "too_long": "must have at most {max_length} items",
    "model_type": "must be an object",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
}
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]  # messages between processes hold no wider integers
TokenId = Annotated[Int32, Field(ge=0)]
Name = Annotated[str, Field(max_length=256)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def refuse(message: str) -> PydanticCustomError:
    """A violation; ``message`` follows the field's name, such as "must be ..."."""
    return PydanticCustomError("refused", "{text}", {"text": message})


@cache
def _names(schema: type[BaseModel]) -> frozenset[str]:
    return frozenset(info.alias or name for name, info in schema.model_fields.items())


class Strict(BaseModel):
    """The base of all schemas: no unknown fields, no silent conversions; a field that is null is absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    endpoint: ClassVar[str] = ""  # or object within a body, whose fields `DECLINED` lists

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        """The fields that request something; the first one that is unknown or declined is an error."""
        if not isinstance(value, dict):
            return value
        known, declined, given = _names(cls), DECLINED.get(cls.endpoint, {}), {}
        for name, field in cls._prepared({k: v for k, v in value.items() if v is not None}).items():
            if name in known:
                given[name] = _with_integers(field)
            elif name not in declined:
                near = get_close_matches(name[:MAX_SHOWN], known, 1)
                raise PydanticCustomError("unknown_field", "unknown", {"field": name, "near": near})
            elif field not in declined[name].neutral:
                text = f"is {shorten(field)}; this server does not support it: {declined[name].advice}"
                raise PydanticCustomError("refused", "{text}", {"text": text, "field": name})
        return given

    @classmethod
    def _prepared(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The fields that are not null, as the schema takes them."""
        return given


def texts_of(parts: list[Any]) -> list[str]:
    """The texts of a list of text parts; raises PydanticCustomError for a part of another kind."""
    for part in parts:
        given = {name for name, value in part.items() if value is not None} if isinstance(part, dict) else set()
        if given - {"prompt_cache_breakpoint"} != {"type", "text"} or part["type"] != "text":
            raise refuse(
                'must be a string or a list of {"type": "text", "text": ...} parts, because this model reads text'
            )
        if not isinstance(part["text"], str):
            raise refuse("holds a text part whose text is no string; it must be a string")
    return [part["text"] for part in parts]


def _with_integers(value: Any) -> Any:
    """The value, or a list of numbers, with 5 for 5.0, which clients write whose numbers are doubles."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MAX_EXACT else value
    if isinstance(value, list) and float in map(type, value):
        return [_with_integers(item) if isinstance(item, float) else item for item in value]
    return value


def parse(schema: type[Schema], body: bytes, max_numbers: int) -> Schema:
    """Decode and check ``body``.

    Raises:
        RequestError: malformed JSON, more than ``MAX_NESTED`` values or ``max_numbers`` numbers, an unknown or
            declined field, or a value out of range.
    """
    if len(body) > SMALL:
        _check_values(body, max_numbers)
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    return validated(schema, fields)


def _check_values(body: bytes, max_numbers: int) -> None:
    """Raises RequestError if a body has too many values, or a number of too many digits, before it is decoded.

    A decoder holds the interpreter lock until its end, and makes an object of fifty bytes from three bytes. This check
    reads gigabytes a second.
    """
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    n_nested = bare.count(b'"') // 2
    if n_nested <= MAX_NESTED:
        bare = b"".join(bare.split(b'"')[::2])
        n_nested += bare.count(b"[") + bare.count(b"{")
    if n_nested > MAX_NESTED:
        raise RequestError(f"the body has more than {MAX_NESTED} strings, arrays and objects")
    if bare.count(b",") > MAX_NESTED + max_numbers:  # an item each
        raise PromptTooLongError(
            f"the body has more than {max_numbers} numbers; this model's maximum context length is below so many tokens"
        )
    if b"0" * (MAX_DIGITS + 1) in bare.translate(DIGITS):
        raise RequestError(f"the body has a number of more than {MAX_DIGITS} digits")


def validated(schema: type[Schema], fields: Any) -> Schema:
    """Check decoded fields; raises RequestError as ``parse``."""
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object")
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _request_error(error.errors(include_url=False)[0]) from None


def _request_error(details: ErrorDetails) -> RequestError:
    kind, context, param = details["type"], details.get("ctx", {}), ""
    for part in (*details["loc"], *([context["field"]] if "field" in context else ())):
        name = str(part)[:MAX_SHOWN]
        param += f"[{name}]" if isinstance(part, int) else f".{name}" if param else name
    if not param:
        return RequestError(details["msg"], details["msg"].partition(" ")[0])
    if kind == "missing":
        return RequestError(f"{param} is missing", param)
    if kind == "unknown_field":
        near = CLIENT_NAMES.get(param) or "".join(param[: -len(name)] + one for one in context["near"])
        return RequestError(f"unknown field {param!r}" + (f"; did you mean {near}?" if near else ""), param)
    if kind == "refused":
        return RequestError(f"{param} {details['msg']}", param)
    expected = EXPECTED.get(kind, "").format(**context)
    expected = expected or re.sub("^(Input|String) should", "must", details["msg"]).replace("valid ", "")
    return RequestError(f"{param} is {shorten(details['input'])}; it {expected}", param)


_REPR = reprlib.Repr()  # reads only the part of a value that it shows
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = MAX_SHOWN
_REPR.maxlevel = 2


def shorten(value: Any) -> str:
    """A client's value as an error shows it, in at most ``MAX_SHOWN`` characters."""
    text = _REPR.repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 4] + " ..."
