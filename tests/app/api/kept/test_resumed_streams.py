"""Streams that can be resumed: a client that comes back has every event once, whatever the steps were."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app import conftest as edge_conftest
from tests.app.api.kept.conftest import data_of, id_of, kept_edge
from tests.app.api.tools.chat_templates import QWEN_3
from tests.app.api.tools.conftest import edge_of
from tests.app.conftest import ScriptedBackend, error_of
from tests.support.recorded_calls import tagged

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESUMABLE = {"stream_options": {"resumable": True, "include_usage": True}}
TALK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "seed": 3} | RESUMABLE
TEXT = {"model": "tiny", "prompt": ["a b", "c"], "temperature": 0.7, "seed": 3, "n": 2} | RESUMABLE
CALLS = "<think>\nI look it up.\n</think>\n\nLooking." + tagged("now", '{"a": 1}') + tagged("search", '{"b": [2]}')
TOOLS = {
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in ("now", "search")
    ]
}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat with log-probabilities": (CHAT, TALK | {"logprobs": True, "top_logprobs": 2}, ""),
    "chat cut by a stop string": (CHAT, TALK | {"stop": ["river keeps"]}, ""),
    "chat cut by its limit": (CHAT, TALK | {"max_tokens": 7}, ""),
    "reasoning and calls of tools": (CHAT, TALK | TOOLS, CALLS),
    "four choices": (COMPLETIONS, TEXT | {"max_tokens": 12}, ""),
    "echo": (COMPLETIONS, TEXT | {"prompt": "a b", "n": 1, "echo": True, "max_tokens": 0}, ""),
}


def backend_of(answer: str) -> ScriptedBackend:
    _, backend = edge_of(QWEN_3, answer) if answer else edge_of(QWEN_3)
    return backend


@pytest.mark.parametrize("case", CASES)
async def test_every_event_comes_once_for_a_client_that_comes_back_after_any_event(case: str) -> None:
    path, body, answer = CASES[case]
    async with kept_edge(backend_of(answer)) as edge:
        events = await edge.stream(path, body)
        parts = [*map(data_of, events)]
        stream = f"/v1/streams/{parts[0]['id']}"
        assert await edge.resume(stream) == events
        ids = [id_of(event) for event in events]
        assert all(ids[:-2]), "a chunk has no id"
        assert ids[-2:] == [None, None]  # usage and [DONE]
        assert len({*ids[:-2]}) == len(ids) - 2
        for i, known in enumerate(ids[:-2], start=1):
            rest = await edge.resume(f"{stream}?after=0", **{"Last-Event-ID": str(known)})
            assert sorted(map(str, map(data_of, rest))) == sorted(map(str, parts[i:])), known


async def test_a_client_that_comes_back_twice_has_every_token_once() -> None:
    async with kept_edge(backend_of("")) as edge:
        events = await edge.stream(COMPLETIONS, TEXT | {"max_tokens": 12})
        stream, whole = f"/v1/streams/{data_of(events[0])['id']}", texts_of(events)
        for once in range(1, len(events) - 2, 5):
            second = await edge.resume(stream, **{"Last-Event-ID": id_of(events[once - 1]) or ""})
            for again in range(1, len(second) - 2, 5):
                third = await edge.resume(stream, **{"Last-Event-ID": id_of(second[again - 1]) or ""})
                assert texts_of([*events[:once], *second[:again], *third]) == whole, (once, again)


def texts_of(events: list[str]) -> list[str]:
    """The text of each choice."""
    texts = ["", "", "", ""]
    for choice in (choice for event in events[:-1] for choice in data_of(event)["choices"]):
        texts[choice["index"]] += choice["text"]
    return texts


@pytest.mark.parametrize("case", CASES)
async def test_events_do_not_depend_on_the_steps_that_tokens_came_in(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, answer = CASES[case]
    streams = []
    for steps in ((1,), (1, 3, 1, 4, 2)):
        monkeypatch.setattr(edge_conftest, "STEPS", steps)
        async with kept_edge(backend_of(answer)) as edge:
            events = [event for event in await edge.stream(path, body) if data_of(event) != "[DONE]"]
        own = ("id", "created", "tool_calls")
        found = [(id_of(event), {k: v for k, v in data_of(event).items() if k not in own}) for event in events]
        streams.append(sorted(str(one).replace(str(data_of(events[0])["id"]), "") for one in found))
    assert [without_call_ids(one) for one in streams[0]] == [without_call_ids(one) for one in streams[1]]


def without_call_ids(event: str) -> str:
    """Ids of calls differ between two answers, and their random salts."""
    head, found, rest = event.partition("'call_")
    return head + rest[24:] if found else event


async def test_the_text_is_that_of_a_plain_stream() -> None:
    async with kept_edge(backend_of(CALLS)) as edge:
        events = await edge.stream(CHAT, TALK | TOOLS)
        plain = await edge.stream(CHAT, TALK | TOOLS | {"stream_options": {"include_usage": True}})
        assert parts_of(events) == parts_of(plain)
        assert data_of(events[-2])["usage"] == data_of(plain[-2])["usage"]


def parts_of(events: list[str]) -> tuple[str, str, str, list[str]]:
    """Reasoning, content, arguments and names of calls."""
    deltas = [choice["delta"] for event in events[:-1] for choice in data_of(event)["choices"]]
    functions = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    return (
        "".join(delta.get("reasoning_content", "") for delta in deltas),
        "".join(delta.get("content", "") or "" for delta in deltas),
        "".join(function["arguments"] for function in functions),
        [function["name"] for function in functions if "name" in function],
    )


async def test_a_stop_string_ends_the_generation_and_a_deleted_stream_is_gone(backend: ScriptedBackend) -> None:
    backend.holds_after = 8  # after the stop string, before the end
    async with kept_edge(backend) as edge:
        events = await edge.stream(CHAT, TALK | {"stop": ["draft"]})
        name = data_of(events[0])["id"]
        await edge.kept.wait_for(name, "completed", tenant="")
        assert data_of(events[-3])["choices"][0]["stop_reason"] == "draft"
        assert backend.cancelled
        answer = await edge.client.delete(f"/v1/streams/{name}")
        assert answer.json() == {"id": name, "object": "stream", "deleted": True}
        assert error_of(await edge.client.get(f"/v1/streams/{name}"), 404)["code"] == "not_found"
        assert error_of(await edge.client.delete(f"/v1/streams/{name}"), 404)["code"] == "not_found"


async def test_wrong_positions_and_parameters_are_refused_by_name(backend: ScriptedBackend) -> None:
    async with kept_edge(backend) as edge:
        name = data_of((await edge.stream(CHAT, TALK))[0])["id"]
        for query, headers, param in (
            ("after=x", {}, "after"),
            ("after=1,2", {}, "after"),
            ("", {"Last-Event-ID": "1.2.3"}, "Last-Event-ID"),
            ("since=1", {}, "since"),
        ):
            refused = error_of(await edge.client.get(f"/v1/streams/{name}?{query}", headers=headers), 400)
            assert refused["param"] == param
        assert error_of(await edge.client.get(f"/v1/responses/{name}"), 404)["code"] == "not_found"


async def test_a_failure_has_its_status_and_a_server_without_a_keeper_says_so(
    backend: ScriptedBackend, client: Any
) -> None:
    async with kept_edge(backend) as edge:
        body = TALK | {"speculative": {"method": "lost"}, "stream": True}
        assert error_of(await edge.client.post(CHAT, json=body), 503)["code"] == "target_lost"
    refused = error_of(await client.post(CHAT, json=TALK | {"stream": True}), 400)
    assert refused["param"] == "stream_options.resumable"
    assert "this server keeps no answers" in refused["message"]
