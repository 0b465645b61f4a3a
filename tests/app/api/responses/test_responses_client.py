"""OpenAI's Responses API through the official client, whose types check every field."""

from __future__ import annotations

from functools import cache
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.app.api.tools.conftest import answering
from tests.app.conftest import ScriptedBackend
from tests.support.recorded_calls import RECORDED, WHOLE_AND_STREAMED, RecordedOutput

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, "strict": None}
    for name in ("get_weather", "search", "now")
]
ASK: dict[str, Any] = {"model": "tiny", "input": "hi", "temperature": 0, "extra_body": {"seed": 3}}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


adapter = cache(TypeAdapter)


def check_type(kind: Any, value: Any) -> None:
    """Check a value by the client's own type; the client itself accepts any."""
    adapter(kind).validate_python(value.model_dump(warnings="error", by_alias=True))


def without_ids(response: Response) -> dict[str, Any]:
    """The fields that two responses of one text share."""
    fields = response.model_dump(warnings=False, exclude={"id", "created_at", "completed_at"})
    output = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in fields.pop("output")]
    return fields | {"output": output}


def streamed(client: openai.OpenAI, **body: Any) -> list[Any]:
    """The events of a stream, after a check of their numbers and types."""
    with client.responses.create(**body, stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == [*range(len(events))]
    for event in events:
        check_type(ResponseStreamEvent, event)
    return events


def built(events: list[Any]) -> list[dict[str, Any]]:
    """Items put together from deltas, as by a client that shows them while they arrive."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event.type:
            case "response.output_item.added":
                assert event.output_index == len(items)
                assert event.item.status == "in_progress"
                items.append(event.item.model_dump())
            case "response.content_part.added":
                assert event.part.text == ""
                items[event.output_index]["content"].append(event.part.model_dump())
            case "response.output_text.delta" | "response.reasoning_text.delta":
                items[event.output_index]["content"][event.content_index]["text"] += event.delta
            case "response.function_call_arguments.delta":
                items[event.output_index]["arguments"] += event.delta
            case "response.output_item.done":
                assert event.item.id == items[event.output_index]["id"]
                items[event.output_index]["status"] = event.item.status
                found, whole = items[event.output_index], event.item.model_dump()
                for item in (found, whole):
                    for part in item.get("content") or ():
                        part.pop("logprobs", None)
                assert found == whole
    return items


EMPTY = RecordedOutput("hermes", "", ())


@pytest.mark.parametrize(
    "recorded", [*(RECORDED[name] for name in WHOLE_AND_STREAMED), EMPTY], ids=lambda r: r.text[:30]
)
def test_the_items_are_the_same_whole_and_streamed(recorded: RecordedOutput) -> None:
    with answering(recorded) as client:
        whole = client.responses.create(**ASK, tools=TOOLS)
        events = streamed(client, **ASK, tools=TOOLS)
    check_type(Response, whole)
    assert without_ids(events[-1].response) == without_ids(whole)
    calls = [item for item in whole.output if item.type == "function_call"]
    assert tuple((call.name, call.arguments) for call in calls) == recorded.calls
    assert whole.output_text == recorded.content
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert [item["type"] for item in built(events)] == [item.type for item in whole.output]
    assert {item.status for item in whole.output} == {"completed"}
    if recorded.reasoning:
        assert whole.output[0].content[0].text == recorded.reasoning
        assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens


def test_a_response_is_the_answer_of_the_chat(server: str, backend: ScriptedBackend) -> None:
    with openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        chat: Any = client.chat.completions.create(
            model="tiny", messages=messages, temperature=0, seed=3, logprobs=True, top_logprobs=2
        )
        body = ASK | LOGPROBS | {"instructions": "Be brief."}
        body |= {"extra_body": {"seed": 3, "speculative": {"max_nodes": 9}}}
        response = client.responses.create(**body)
        events = streamed(client, **body)
        cut = client.responses.create(**ASK | {"max_output_tokens": 3})
    assert response.output_text == chat.choices[0].message.content == backend.answer
    assert backend.seen[0].prompt == backend.seen[1].prompt
    assert (response.seed, response.instructions, response.status) == (3, "Be brief.", "completed")
    assert backend.seen[1].max_nodes == 9
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    assert response.metrics["speculative_decoding"]["num_spec_tokens"] == 9
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (cut.usage.output_tokens, cut.output[-1].status) == (3, "incomplete")
    entries = [entry.model_dump() for entry in chat.choices[0].logprobs.content]
    assert [entry.model_dump() for entry in response.output[0].content[0].logprobs] == entries
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    logprobs = [entry.model_dump()["logprob"] for event in deltas for entry in event.logprobs]
    assert logprobs == [entry["logprob"] for entry in entries]


def test_items_of_a_response_are_accepted_as_the_next_input() -> None:
    with answering(RECORDED["hermes, one call"]) as client:
        first = client.responses.create(**ASK, tools=TOOLS)
        calls = [item for item in first.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
        sent_back = [{"role": "user", "content": "hi"}, *(i.model_dump() for i in first.output), *results]
        assert client.responses.create(**ASK | {"input": sent_back}, tools=TOOLS).status == "completed"


def test_a_failure_within_a_stream_is_its_last_event(server: str, backend: ScriptedBackend) -> None:
    backend.fails_after = 3
    with openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0) as client:
        events = streamed(client, **ASK)
        response = events[-1].response
        assert (events[-1].type, response.status, response.error.code) == ("response.failed", "failed", "server_error")
        assert built(events)[-1]["status"] == "incomplete"
        backend.fails_after = 0
        with pytest.raises(openai.InternalServerError):
            client.responses.create(**ASK, stream=True)
