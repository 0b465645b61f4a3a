"""Errors of a configuration in one sentence: the field, its value, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.config.serve import ServeConfig
from app.inputs.stores import NAMESPACE_FORM
from engine.errors import ConfigError
from retrieval_store.stores.open import shown

REMOVED: Mapping[str, str] = {
    "traces": "otlp_endpoint alone turns traces on: a URL, or env",
    "drafter_layers": """use drafter_options '{"layers": [1, 15, 28]}'""",
    "drafter_depth": """use drafter_options '{"depth": 6}'""",
    "drafter_beam": """use drafter_options '{"beam": 8}'""",
    "draft_tokens": """use draft_model_options '{"draft_tokens": 5}'""",
    "draft_nodes": """use draft_model_options '{"tree_nodes": 16}'""",
    "live_interval": "retrieval_poll is also the time between two reads of live text",
    "live_compact_tokens": "five times live_tokens become a snapshot",
    "affinity_slack": "affinity leaves a pipeline that has 4096 tokens of work more than another",
    "scale_timeout": "a warning is logged if a pipeline has not started after 900 s",
    "replace_timeout": "a pipeline starts anew if a lost stage is not replaced within 600 s",
    "block_size": "a KV block has 64 tokens",
    "prefill_chunk": "max_stall limits prompt tokens by time, max_step_rows by number; a chunk has at most 512",
}
"""Fields of earlier versions -> what replaces them."""
RIGHT: Mapping[str, str] = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("dict_type", "model_type"), "a JSON object"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    "string_type": "text",
    "too_short": "a list of at least {min_length}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
}
"""Pydantic's type of error -> the allowed values, with the names of the error's context."""
NESTED: dict[str, type[BaseModel]] = {
    name: info.annotation
    for name, info in ServeConfig.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
}
"""Fields with settings of their own, such as those of a method."""
_FIELD = re.compile(rf"\b({'|'.join(ServeConfig.model_fields)})\b")
_NAMED = re.compile(rf"\b({'|'.join(ServeConfig.model_fields)})\b(?= (is|names|has no)\b|:)")
WHOLE = ("dict_type", "model_type")  # errors of a field in ``NESTED`` that is no object
FORMS = {
    "kv_gib": "above 0 (GiB), or auto",
    "device": "auto, cpu, cuda or cuda:N",
    "tenant_header": "1 to 64 letters, digits and '-'",
    "retrieval_namespace": NAMESPACE_FORM,
}


def config_of(given: Mapping[str, Any], name: Callable[[str], str] = str) -> ServeConfig:
    """Return the configuration that ``given`` describes.

    Args:
        given: values by field; strings are parsed.
        name: returns how the user wrote a field: as a key, or as a flag.

    Raises:
        ConfigError: names the first wrong field, its value and what is allowed; shows no password.
    """
    for field in REMOVED.keys() & given.keys():
        raise ConfigError(f"{name(field)} no longer exists: {_FIELD.sub(lambda known: name(known[0]), REMOVED[field])}")
    try:
        return ServeConfig.model_validate(given)
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors(include_url=False)[0], name)) from None


def _sentence(error: ErrorDetails, name: Callable[[str], str]) -> str:
    context = error.get("ctx", {})
    if not error["loc"]:  # of several fields; the message names them
        return _NAMED.sub(lambda field: name(field[0]), str(context.get("error", error["msg"])))
    field, value = str(error["loc"][0]), error["input"]
    if field in NESTED and error["type"] not in WHOLE:
        return f"{name(field)}: {_about_setting(field, error)}"
    if error["type"] == "extra_forbidden":
        near = get_close_matches(field, ServeConfig.model_fields, 1)
        return f"{name(field)} is unknown{f'; did you mean {name(near[0])}?' if near else ''}"
    said = shown(value) if field == "retrieval" and isinstance(value, str) else value
    right = FORMS.get(field) or _right(error)
    if not right:
        return f"{name(field)} is {said!r}: {error['msg']}"
    return f"{name(field)} is {said or repr(said)}; it must be {right}"


def _right(error: ErrorDetails) -> str:
    return RIGHT.get(error["type"], "").format(**error.get("ctx", {})).replace("'", "")


def _about_setting(field: str, error: ErrorDetails) -> str:
    """Return what is wrong with a setting of a field in ``NESTED``."""
    if len(error["loc"]) == 1:  # of several settings, or in the elements of one; the message names them
        return str(error.get("ctx", {}).get("error", error["msg"]))
    setting, known = str(error["loc"][1]), sorted(NESTED[field].model_fields)
    if error["type"] == "extra_forbidden":
        return f"{setting} is unknown; it has {', '.join(known)}"
    value, right = error["input"], _right(error)
    return f"{setting} is {value!r}; it must be {right}" if right else f"{setting} is {value!r}: {error['msg']}"
