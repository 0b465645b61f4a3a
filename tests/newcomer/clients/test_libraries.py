"""Further client libraries get the texts, calls and objects that plain HTTP gets, and know a full context."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.newcomer.clients.conftest import HERE, Answer, Results, installed_packages
from tests.newcomer.installation import output_of
from tests.support.server_process import SpectraServer

pytestmark = pytest.mark.matrix

FULL = "context_length_exceeded"


def test_langchain_gets_the_texts_calls_and_objects(
    results_of: Results, text: str, n_tokens: int, person: Answer
) -> None:
    results = results_of("with_langchain")
    names = ("text", "streamed", "speculative", "responses", "fallback")
    assert [results[name] for name in names] == [text] * len(names)
    assert results["usage"]["output_tokens"] == n_tokens
    for calls in (results["calls"], results["streamed_calls"]):
        assert [call["name"] for call in calls] == ["weather"]
        assert calls[0]["args"]["city"] in ("Rome", "Oslo")
        assert calls[0]["args"]["days"] in (1, 2, 3)
    assert results["calls"][0]["args"] == results["streamed_calls"][0]["args"]
    assert results["after_the_tool"]
    assert results["json_schema"] == person
    assert results["function_calling"].keys() == person.keys()  # checked against the class by the library


def test_instructor_gets_valid_objects(results_of: Results) -> None:
    results = results_of("with_instructor")
    assert len(results) == 6
    for name, order in results.items():  # checked against the class by the library
        keys = {"dish", "guests", "table"}
        assert order and order.keys() <= keys if name.endswith(" in parts") else order.keys() == keys


def test_llama_index_gets_texts_calls_and_objects(results_of: Results, text: str, person: Answer) -> None:
    results = results_of("with_llama_index", "llama-index")
    assert [results["text"], results["streamed"]] == [text] * 2
    assert [results["schema"], results["schema streamed"]] == [person] * 2
    [[name, arguments]] = results["calls"]
    assert (name, arguments.keys()) == ("weather", {"city", "days"})
    assert results["streamed calls"] == results["agent"]["calls"] == results["calls"]
    assert results["after a tool"] == "rain in {city} for {days} days".format(**arguments)
    for found in (results["function"], results["agent"]["object"]):  # checked against the class by the library
        assert found.keys() == person.keys()
    assert results["refused"] == FULL


def test_openai_agents_answer_with_objects_after_calls(results_of: Results, person: Answer) -> None:
    found = results_of("with_openai_agents")
    assert found.keys() == {"chats", "responses"}
    for results in found.values():
        assert results["whole"] == {"object": person, "tools' answers": []}
        assert results["streamed"] == [person, person]
        [answer] = results["after a tool"]["tools' answers"]
        assert answer.startswith("rain in ")
        for name in ("after a tool", "call or object"):  # checked against the class by the library
            assert results[name]["object"].keys() == person.keys()
        assert results["refused"] == FULL


def test_the_ai_sdk_gets_texts_calls_and_objects(
    server: SpectraServer, text: str, n_tokens: int, person: Answer
) -> None:
    folder = installed_packages("ai-sdk")
    program = shutil.copy(HERE / "programs" / "with_ai_sdk.mjs", folder)  # node looks for packages next to it
    results = json.loads(output_of("node", program, f"{server.base}/v1"))
    assert [results["text"], results["streamed"], results["usage"]] == [text, text, n_tokens]
    assert results["resumable"] == [text, n_tokens]
    assert [results["object"], results["streamedObject"]] == [person, person]
    [[name, arguments]] = results["calls"]
    assert (name, arguments.keys()) == ("weather", {"city", "days"})
    assert results["streamedCalls"] == results["resumableCalls"] == results["calls"]
    assert [name for name, _ in results["callsBefore"]] == ["weather"]
    for found in (results["objectAfterTool"], results["callsOrObject"]):  # checked against the schema by the library
        assert found.keys() == person.keys()
    assert results["refused"] == [400, FULL]
