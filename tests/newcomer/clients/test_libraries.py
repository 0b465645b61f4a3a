"""langchain-openai and instructor get the texts, calls and objects that plain HTTP gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.inputs.default_model import DEFAULT_MODEL
from tests.support.server_process import Server

pytestmark = pytest.mark.matrix

Results = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def sum_of(server: Server) -> dict[str, Any]:
    """The server's answer to the programs' question by plain HTTP."""
    question = [{"role": "user", "content": "What is 12 plus 7?"}]
    answer = server.http.post(
        "/v1/chat/completions", json={"model": DEFAULT_MODEL, "temperature": 0, "messages": question}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_langchain_gets_the_texts_calls_and_objects(results_of: Results, sum_of: dict[str, Any]) -> None:
    results = results_of("with_langchain")
    text = sum_of["choices"][0]["message"]["content"]
    assert [results[name] for name in ("text", "streamed", "speculative", "responses")] == [text] * 4
    assert results["usage"]["output_tokens"] == sum_of["usage"]["completion_tokens"]
    for calls in (results["calls"], results["streamed_calls"]):
        assert [call["name"] for call in calls] == ["weather"]
        assert isinstance(calls[0]["args"]["city"], str)
        assert isinstance(calls[0]["args"]["days"], int)
    assert results["calls"][0]["args"] == results["streamed_calls"][0]["args"]
    assert results["after_the_tool"]
    for form in ("json_schema", "function_calling"):  # checked against the class by the library
        assert results[form].keys() == {"name", "age", "city"}


def test_instructor_gets_valid_objects(results_of: Results) -> None:
    results = results_of("with_instructor")
    assert len(results) == 6
    for name, order in results.items():  # checked against the class by the library
        keys = {"dish", "guests", "table"}
        assert order and order.keys() <= keys if name.endswith(" in parts") else order.keys() == keys
