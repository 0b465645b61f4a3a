"""Values of every field of every schema, most of which the schema accepts; hypothesis makes them."""

from __future__ import annotations

import warnings
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from app.api.requests.parsing import Strict
from app.api.requests.responses import ResponsesRequest
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

SCHEMAS: dict[str, type[Strict]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(("string", "object", "#")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("type", "properties", "items", "enum", "$ref", "anyOf", "x")), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def values_of(with_seed: int, n: int) -> dict[str, dict[str, list[Any]]]:
    """Path -> field -> values of its type, most of which it accepts."""
    st.register_type_strategy(_Json, JSON)
    for schema in _schemas(Strict):
        st.register_type_strategy(schema, _objects(schema))
    return {
        path: {name: _drawn(one, with_seed, n) for name, one in _strategies(schema).items()}
        for path, schema in SCHEMAS.items()
    }


def _schemas(base: type[Strict]) -> list[type[Strict]]:
    return [found for schema in base.__subclasses__() for found in (schema, *_schemas(schema))]


class _Json:
    """Any value of JSON, where a schema takes any."""


def _of_type(annotation: Any) -> st.SearchStrategy[Any]:
    return st.from_type(_known(annotation))


def _known(annotation: Any) -> Any:
    """The same without ``Any``, for which hypothesis makes nothing."""
    if annotation is Any:
        return _Json
    origin, args = get_origin(annotation), get_args(annotation)
    if not args or origin is Literal:
        return annotation
    known = tuple(map(_known, args))
    if origin in (Union, UnionType):
        return reduce(or_, known)
    return Annotated[known] if origin is Annotated else origin[known]


def _strategies(schema: type[Strict]) -> dict[str, st.SearchStrategy[Any]]:
    """What every field takes, by the name that a body gives it."""
    return {info.alias or name: _of_type(info.annotation) for name, info in schema.model_fields.items()}


def _objects(schema: type[Strict]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of a schema's fields, and values of their types."""
    return st.fixed_dictionaries({}, optional=_strategies(schema))


def _drawn(strategy: st.SearchStrategy[Any], with_seed: int, n: int) -> list[Any]:
    found: list[Any] = []

    @seed(with_seed)
    @settings(
        max_examples=n,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)
        draw()
    return found
