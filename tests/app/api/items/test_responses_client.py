"""OpenAI's Responses API through the official client, whose types check every field, and a real server."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from app.api.edge import Edge
from app.api.http import Api
from app.api.service import Settings
from tests.app.api.tools.conftest import client_of
from tests.support import chat_templates
from tests.support.chat_templates import OF_FAMILY
from tests.support.recorded_calls import RECORDED

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, "strict": None}
    for name in ("get_weather", "search", "now")
]
ASK = {"model": "tiny", "input": "hi", "temperature": 0, "extra_body": {"seed": 3}}
IDS = ("id", "created_at", "completed_at")
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
CASES = [
    (template, recorded)
    for family, template in OF_FAMILY.values()
    for recorded in RECORDED.values()
    if recorded.family == family and (not recorded.reasoning or "think" in template)
]


def strictly(kind: Any, value: Any) -> None:
    """Check a value against the client's own type; the client itself takes any."""
    TypeAdapter(kind).validate_python(value.model_dump(warnings="error", by_alias=True))


def without_ids(response: Response) -> dict[str, Any]:
    """What two responses of one text have in common."""
    fields = {name: value for name, value in response.model_dump(warnings=False).items() if name not in IDS}
    output = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in fields.pop("output")]
    return fields | {"output": output}


def streamed(client: openai.OpenAI, **body: Any) -> list[Any]:
    """The events of a stream, numbered without a gap, each of the client's types."""
    with client.responses.create(**body, stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == [*range(len(events))]
    for event in events:
        strictly(ResponseStreamEvent, event)
    return events


def built(events: list[Any]) -> list[dict[str, Any]]:
    """Items put together from events alone, as a client does that shows them while they come."""
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
                got, wanted = items[event.output_index], event.item.model_dump()
                for one in (got, wanted):
                    for part in one.get("content") or ():
                        part.pop("logprobs", None)
                assert got == wanted
    return items


@pytest.mark.parametrize(("template", "recorded"), CASES, ids=lambda value: getattr(value, "text", "")[:30])
def test_the_same_items_whole_and_streamed(template, recorded) -> None:
    with client_of(template, recorded.text) as client:
        whole = client.responses.create(**ASK, tools=TOOLS)
        events = streamed(client, **ASK, tools=TOOLS)
    strictly(Response, whole)
    assert without_ids(events[-1].response) == without_ids(whole)
    calls = [item for item in whole.output if item.type == "function_call"]
    assert tuple((call.name, call.arguments) for call in calls) == recorded.calls
    if "</think>" in template or "<think>" not in recorded.text:
        assert whole.output_text == recorded.content
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert [item["type"] for item in built(events)] == [item.type for item in whole.output]
    assert {item.status for item in whole.output} == {"completed"}


def test_an_answer_is_what_the_chat_answers(server: str, backend) -> None:
    with openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        chat = client.chat.completions.create(model="tiny", messages=messages, temperature=0, seed=3)
        body = ASK | {"instructions": "Be brief.", "extra_body": {"seed": 3, "speculative": {"max_nodes": 9}}}
        response = client.responses.create(**body)
        many = client.responses.create(**ASK | {"max_output_tokens": 3})
    assert response.output_text == chat.choices[0].message.content == backend.answer
    assert backend.seen[0].prompt == backend.seen[1].prompt
    assert (response.seed, response.instructions, response.status) == (3, "Be brief.", "completed")
    assert backend.seen[1].max_nodes == 9
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    assert response.metrics["speculative_decoding"]["num_spec_tokens"] == 9
    assert (many.status, many.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (many.usage.output_tokens, many.output[-1].status) == (3, "incomplete")


def test_an_empty_answer_is_an_empty_message() -> None:
    with client_of(chat_templates.HERMES, "") as client:
        whole, events = client.responses.create(**ASK), streamed(client, **ASK)
    assert [item.type for item in whole.output] == ["message"]
    assert whole.output_text == ""
    assert without_ids(events[-1].response) == without_ids(whole)


def test_log_probabilities_are_those_of_the_chat(server: str) -> None:
    with openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], temperature=0, logprobs=True, top_logprobs=2
        )
        whole = client.responses.create(**ASK | LOGPROBS)
        events = streamed(client, **ASK | LOGPROBS)
    wanted = [entry.model_dump() for entry in chat.choices[0].logprobs.content]
    assert [entry.model_dump() for entry in whole.output[0].content[0].logprobs] == wanted
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [entry.model_dump()["logprob"] for event in deltas for entry in event.logprobs] == [
        entry["logprob"] for entry in wanted
    ]


def test_a_conversation_goes_on_with_what_was_answered() -> None:
    recorded = next(r for r in RECORDED.values() if r.family == "hermes" and r.calls)
    with client_of(chat_templates.HERMES, recorded.text) as client:
        first = client.responses.create(**ASK, tools=TOOLS)
        calls = [item for item in first.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
        sent_back = [{"role": "user", "content": "hi"}, *(i.model_dump() for i in first.output), *results]
        assert client.responses.create(**ASK | {"input": sent_back}, tools=TOOLS).status == "completed"


def test_the_clients_own_helpers_read_the_stream_and_parse_the_text() -> None:
    class City(openai.BaseModel):
        name: str

    with client_of(chat_templates.HERMES, json.dumps({"name": "Oslo"})) as client:
        with client.responses.stream(**ASK, text_format=City) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert kinds[-1] == "response.completed"
        assert final.output_parsed == City(name="Oslo")
        assert client.responses.parse(**ASK, text_format=City).output_parsed == City(name="Oslo")


def test_reasoning_is_an_item_that_is_counted() -> None:
    with client_of(chat_templates.QWEN_3, "<think>\nWell, two.\n</think>\n\nTwo.") as client:
        whole, events = client.responses.create(**ASK), streamed(client, **ASK)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert "Well, two." in whole.output[0].content[0].text
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    assert [item["type"] for item in built(events)] == ["reasoning", "message"]


def test_a_failure_within_a_stream_is_its_last_event(server: str, backend) -> None:
    backend.fails_after = 3
    with openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0) as client:
        events = streamed(client, **ASK)
        assert events[-1].type == "response.failed"
        assert events[-1].response.status == "failed"
        assert events[-1].response.error.code == "server_error"
        assert built(events)[-1]["status"] == "incomplete"
        backend.fails_after = 0
        with pytest.raises(openai.InternalServerError):
            client.responses.create(**ASK, stream=True)


async def test_a_handle_takes_the_same_bodies(backend, tokenizer) -> None:
    edge = Edge(Api(backend, tokenizer, Settings()))
    body = {"input": "hi", "temperature": 0, "seed": 3}
    whole = await edge.generate(body)
    events = [event async for event in edge.generate_stream(body)]
    assert whole["output"][0]["content"][0]["text"] == backend.answer
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
    assert events[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert (await edge.generate({"input": 3}))["error"]["param"] == "input"
