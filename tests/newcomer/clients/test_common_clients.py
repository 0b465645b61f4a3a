"""openai, litellm and pydantic-ai get the texts, calls and objects that plain HTTP gets, and know a full context."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from app.inputs.default_model import DEFAULT_MODEL
from tests.newcomer.clients.conftest import Answer, Results
from tests.newcomer.clients.programs.person import ASKED, QUESTION, TOO_MANY, Person
from tests.support.server_process import SpectraServer

pytestmark = pytest.mark.cluster

WEATHER = {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2, 3]}}
PARAMETERS = {"type": "object", "properties": WEATHER, "required": [*WEATHER], "additionalProperties": False}
TOOL: Any = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": PARAMETERS}}
CITIES = ("Rome", "Oslo")


def fields_for(question: str, most: int = 200) -> dict[str, Any]:
    message = {"role": "user", "content": question}
    return {"model": DEFAULT_MODEL, "temperature": 0, "max_tokens": most, "messages": [message]}


def test_openai_gets_texts_calls_and_objects(server: SpectraServer, text: str, person: Answer) -> None:
    chats = server.openai.chat.completions
    assert chats.create(**fields_for(QUESTION, 24)).choices[0].message.content == text
    with chats.stream(**fields_for(QUESTION, 24)) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
    assert "".join(deltas) == text
    options: Any = {"resumable": True}
    with chats.stream(**fields_for(QUESTION, 24), stream_options=options) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == text
    asked = fields_for(ASKED) | {"response_format": Person}
    parsed = chats.parse(**asked).choices[0].message.parsed
    assert parsed is not None
    assert parsed.model_dump() == person
    with chats.stream(**asked) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    response = server.openai.responses.parse(
        model=DEFAULT_MODEL, temperature=0, max_output_tokens=200, input=ASKED, text_format=Person
    )
    assert response.output_parsed == parsed


@pytest.mark.parametrize("choice", ["required", "auto", "none"])
def test_openai_gets_a_call_or_an_object_from_an_answer_that_may_be_either(
    choice: Any, server: SpectraServer, person: Answer
) -> None:
    either = {"response_format": Person, "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    asked = fields_for(ASKED) | either
    whole = server.openai.chat.completions.parse(**asked).choices[0].message
    with server.openai.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.parsed == whole.parsed
    calls = [call.function for call in whole.tool_calls or []]
    assert [call.function.parsed_arguments for call in streamed.tool_calls or []] == [
        call.parsed_arguments for call in calls
    ]
    for call in calls:
        arguments: Any = call.parsed_arguments
        assert (call.name, arguments.keys()) == ("weather", WEATHER.keys())
        assert all(arguments[name] in WEATHER[name]["enum"] for name in WEATHER)
    assert bool(calls) == (whole.parsed is None)
    if choice != "auto":
        assert bool(calls) == (choice == "required")
    if choice == "none":
        assert whole.parsed is not None
        assert whole.parsed.model_dump() == person


def test_openai_knows_that_a_context_is_full(server: SpectraServer) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
        server.openai.chat.completions.create(**fields_for(QUESTION, TOO_MANY))
    assert refused.value.code == "context_length_exceeded"


def test_litellm_gets_texts_calls_and_objects_and_falls_back(
    results_of: Results, text: str, n_tokens: int, person: Answer
) -> None:
    results = results_of("with_litellm", "common")
    assert [results[name] for name in ("text", "streamed", "provider openai", "fallback")] == [text] * 4
    assert results["usage"] == n_tokens
    [[name, arguments]] = results["calls"]
    assert (name, arguments.keys()) == ("weather", {"city", "days"})
    assert arguments["city"] in CITIES
    assert 1 <= arguments["days"] <= 9
    assert results["streamed calls"] == results["calls"]
    assert [results[name] for name in ("object", "streamed object", "object after tools")] == [person] * 3
    assert results["calls or object"]  # checked against the class by the program
    assert results["refused"] == 400  # by the error that means a full context


def test_pydantic_ai_gets_texts_and_objects_and_falls_back(
    results_of: Results, text: str, n_tokens: int, person: Answer
) -> None:
    results = results_of("with_pydantic_ai", "common")
    assert [results[name] for name in ("text", "streamed", "fallback")] == [text] * 3
    assert results["usage"] == n_tokens
    assert results["NativeOutput"] == person
    for output in ("NativeOutput", "ToolOutput"):  # checked against the class by the library
        assert results[f"{output} streamed"] == results[output]
        assert results[f"{output} with tools"].keys() == person.keys()
        assert all(answer.startswith("rain in ") for answer in results[f"{output} tools' answers"])
    assert results["refused"] == 400  # by the error that means a full context
