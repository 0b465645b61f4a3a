"""langchain-openai, litellm and instructor get the texts, calls and objects that plain HTTP gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.server_process import Server

pytestmark = [pytest.mark.cluster, pytest.mark.clients]

Said = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def sum_of(server: Server) -> dict[str, Any]:
    """The answer to the question of all programs, by plain HTTP."""
    question = [{"role": "user", "content": "What is 12 plus 7?"}]
    answer = server.http.post("/v1/chat/completions", json={"model": "demo", "temperature": 0, "messages": question})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_langchain(said: Said, sum_of: dict[str, Any]) -> None:
    told = said("with_langchain")
    text = sum_of["choices"][0]["message"]["content"]
    assert [told[name] for name in ("text", "streamed", "speculative", "responses")] == [text] * 4
    assert told["usage"]["output_tokens"] == sum_of["usage"]["completion_tokens"]
    for calls in (told["calls"], told["streamed_calls"]):
        assert [call["name"] for call in calls] == ["weather"]
        assert isinstance(calls[0]["args"]["city"], str)
        assert isinstance(calls[0]["args"]["days"], int)
    assert told["calls"][0]["args"] == told["streamed_calls"][0]["args"]
    assert told["after_the_tool"]
    for form in ("json_schema", "function_calling"):  # checked against the class by the library
        assert told[form].keys() == {"name", "age", "city"}


def test_litellm(said: Said, sum_of: dict[str, Any]) -> None:
    told = said("with_litellm")
    text, n_tokens = sum_of["choices"][0]["message"]["content"], sum_of["usage"]["completion_tokens"]
    assert [told[name] for name in ("text", "streamed", "awaited", "as_openai")] == [text] * 4
    assert told["usage"] == told["streamed_usage"] == n_tokens
    assert told["plain"]
    [[name, arguments]] = told["calls"]
    assert name == "weather"
    for written in (told["json"], arguments):
        assert {type(value) for value in json.loads(written).values()} == {str, int}
    assert "temperature is 9" in told["refused"]


def test_instructor(said: Said) -> None:
    told = said("with_instructor")
    assert told.pop("JSON") == {"name": "Mary"}
    assert len(told) == 6
    for name, order in told.items():  # checked against the class by the library
        if name.endswith(" in parts"):  # where every field may be missing: another schema, and so another answer
            streamed, whole = order
            assert streamed == whole
            assert streamed
        else:
            assert order.keys() == {"dish", "guests", "table"}
