"""Responses in the background, over HTTP and with OpenAI's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.access.keyring import Keyring
from engine.errors import ModelChangedError
from engine.events import NOT_FINITE, StepEvent
from engine.request import Request
from tests.app.access.conftest import Keys
from tests.app.api.kept.conftest import KeptEdge, data_of, kept_edge
from tests.app.conftest import ANSWER, ScriptedBackend, error_of
from tests.support.waiting import PAUSE_S, wait_until_async

PATH = "/v1/responses"
BODY = {"model": "tiny", "input": "hi", "temperature": 0, "seed": 3, "background": True}


async def ended(edge: KeptEdge, name: str, tenant: str = "") -> dict[str, Any]:
    await wait_until_async(lambda: edge.kept.keeper.kept.by_id[name].end is not None, lambda: f"{name} has not ended")
    response = await edge.client.get(f"{PATH}/{name}")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


async def test_a_response_is_queued_then_in_progress_then_complete(backend: ScriptedBackend) -> None:
    backend.holds_after = 0
    async with kept_edge(backend) as edge:
        first = (await edge.client.post(PATH, json=BODY | {"metadata": {"a": "b"}, "instructions": "Be brief."})).json()
        assert (first["status"], first["background"], first["store"]) == ("queued", True, True)
        assert (first["output"], first["usage"], first["seed"]) == ([], None, 3)
        backend.holds_after = 3
        entry = edge.kept.keeper.kept.by_id[first["id"]]
        await wait_until_async(lambda: entry.choices[0].n_readable == 3, "three steps are not there")
        partial = (await edge.client.get(f"{PATH}/{first['id']}")).json()
        assert (partial["status"], partial["completed_at"], partial["usage"]) == ("in_progress", None, None)
        (item,) = partial["output"]
        assert (item["status"], item["content"][0]["text"]) == ("in_progress", ANSWER[: len("The fox ")]), item
        backend.holds_after = None
        whole = await ended(edge, first["id"])
        assert (whole["status"], whole["output"][0]["content"][0]["text"]) == ("completed", ANSWER)
        assert (whole["metadata"], whole["instructions"], whole["created_at"]) == (
            {"a": "b"}, "Be brief.", first["created_at"],
        )  # fmt: skip
        direct = (await edge.client.post(PATH, json=BODY | {"background": False, "instructions": "Be brief."})).json()
        assert whole["usage"] == direct["usage"]
        again = (await edge.client.get(f"{PATH}/{first['id']}")).json()
        assert again == whole


@pytest.mark.parametrize("more", [{}, {"stop": ["river keeps"]}, {"max_output_tokens": 9}], ids=str)
async def test_events_after_any_number_are_those_of_the_first_stream(
    backend: ScriptedBackend, more: dict[str, Any]
) -> None:
    async with kept_edge(backend) as edge:
        events = [*map(data_of, await edge.stream(PATH, BODY | more))]
        name = events[0]["response"]["id"]
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        assert [event["type"][9:] for event in events[:3]] == ["created", "queued", "in_progress"]
        ends = "incomplete" if "max_output_tokens" in more else "completed"
        assert events[-1]["type"] == f"response.{ends}"
        whole = await ended(edge, name)
        whole.pop("metrics")
        events[-1]["response"].pop("metrics")
        assert events[-1]["response"] | {"completed_at": None} == whole | {"completed_at": None}
        for number in range(-1, len(events)):
            query = f"stream=true&starting_after={number}" if number >= 0 else "stream=true"
            rest = [*map(data_of, await edge.resume(f"{PATH}/{name}?{query}"))]
            if rest:
                rest[-1]["response"].pop("metrics")
                rest[-1]["response"]["completed_at"] = events[-1]["response"]["completed_at"]
            assert rest == events[number + 1 :]


async def test_cancel_stops_a_response_for_good_and_delete_removes_it(backend: ScriptedBackend) -> None:
    backend.holds_after = 4
    async with kept_edge(backend) as edge:
        name = (await edge.client.post(PATH, json=BODY)).json()["id"]
        entry = edge.kept.keeper.kept.by_id[name]
        await wait_until_async(lambda: entry.choices[0].n_readable == 4, "four steps are not there")
        cancelled = (await edge.client.post(f"{PATH}/{name}/cancel")).json()
        (item,) = cancelled["output"]
        assert (cancelled["status"], cancelled["error"], item["status"]) == ("cancelled", None, "incomplete")
        text = item["content"][0]["text"]
        assert text
        assert ANSWER.startswith(text)
        await wait_until_async(lambda: bool(backend.cancelled), "the backend still generates")
        assert (await edge.client.post(f"{PATH}/{name}/cancel")).json() == cancelled
        last = data_of((await edge.resume(f"{PATH}/{name}?stream=true"))[-1])
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        answer = await edge.client.delete(f"{PATH}/{name}")
        assert answer.json() == {"id": name, "object": "response", "deleted": True}
        for request in (
            edge.client.get(f"{PATH}/{name}"),
            edge.client.post(f"{PATH}/{name}/cancel"),
            edge.client.delete(f"{PATH}/{name}"),
        ):
            assert error_of(await request, 404)["code"] == "not_found"


async def test_a_failed_response_says_why(backend: ScriptedBackend) -> None:
    backend.fails_after = 2
    backend.failure = ModelChangedError("the model that this request was meant for is no longer served")
    async with kept_edge(backend) as edge:
        name = (await edge.client.post(PATH, json=BODY)).json()["id"]
        failed = await ended(edge, name)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "no longer served" in failed["error"]["message"]
        last = data_of((await edge.resume(f"{PATH}/{name}?stream=true"))[-1])
        assert (last["type"], last["response"]["error"]) == ("response.failed", failed["error"])


async def test_a_response_that_the_engine_aborts_is_no_complete_one(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def abort(_: Request) -> AsyncIterator[StepEvent]:
        yield StepEvent(token_ids=[50])
        yield StepEvent(token_ids=[], finish_reason="abort", error=NOT_FINITE)

    monkeypatch.setattr(backend, "_steps", abort)
    async with kept_edge(backend) as edge:
        failed = await ended(edge, (await edge.client.post(PATH, json=BODY)).json()["id"])
        assert (failed["status"], failed["completed_at"], failed["error"]["code"]) == ("failed", None, "server_error")
        assert failed["output"][0]["status"] == "incomplete"


async def test_a_response_has_its_place_until_it_ends_and_pays_for_its_prompt(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    keys = Keys(tmp_path / "keys.jsonl")
    mine = keys.add("mine", max_concurrent=1, tokens_per_minute=1000)
    backend.holds_after = 0
    async with kept_edge(backend, Keyring(keys.path, clock=lambda: 0.0)) as edge:
        name = (await edge.client.post(PATH, json=BODY, headers=mine)).json()["id"]
        error_of(await edge.client.post(PATH, json=BODY, headers=mine), 429)
        assert (await edge.client.get(f"{PATH}/{name}", headers=mine)).status_code == 200
        assert (await edge.client.delete(f"{PATH}/{name}", headers=mine)).status_code == 200
        while (answer := await edge.client.post(PATH, json=BODY, headers=mine)).status_code == 429:
            await asyncio.sleep(PAUSE_S)
        await edge.client.delete(f"{PATH}/{answer.json()['id']}", headers=mine)
        left = 1000
        while left > 990 or left < 900:  # two prompts of 5 tokens are paid for, 200 tokens each given back
            found = await edge.client.get(f"{PATH}/resp_none", headers=mine)
            left = int(found.headers["x-ratelimit-remaining-tokens"])
            await asyncio.sleep(PAUSE_S)
        assert left == 990


async def test_wrong_queries_and_bodies_are_refused_by_name(backend: ScriptedBackend) -> None:
    async with kept_edge(backend) as edge:
        name = (await edge.client.post(PATH, json=BODY)).json()["id"]
        for query, param in (
            ("stream=1", "stream"),
            ("starting_after=3", "starting_after"),
            ("stream=true&starting_after=-1", "starting_after"),
            ("stream=true&starting_after=1000000000", "starting_after"),
            ("stream=true&include_obfuscation=true", "include_obfuscation"),
            ("limit=3", "limit"),
        ):
            assert error_of(await edge.client.get(f"{PATH}/{name}?{query}"), 400)["param"] == param
        refused = error_of(await edge.client.post(PATH, json=BODY | {"store": False}), 400)
        assert "background" in refused["message"]
        assert (await edge.client.post(PATH, json=BODY | {"store": True})).status_code == 200
        assert error_of(await edge.client.get(f"/v1/streams/{name}"), 404)["code"] == "not_found"


async def test_a_key_of_another_tenant_finds_nothing_and_pays_nothing(backend: ScriptedBackend, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.jsonl")
    keys.add("mine", tenant="mine", tokens_per_minute=300)
    keys.add("again", tenant="mine")
    keys.add("other", tenant="other")
    backend.holds_after = 2
    async with kept_edge(backend, Keyring(keys.path, clock=lambda: 0.0)) as edge:
        mine = keys.headers("mine")
        answer = await edge.client.post(PATH, json=BODY | {"max_output_tokens": 200}, headers=mine)
        name = answer.json()["id"]
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 110  # reserved while it is generated
        for request in (
            edge.client.get(f"{PATH}/{name}", headers=keys.headers("other")),
            edge.client.get(f"{PATH}/{name}?stream=true", headers=keys.headers("other")),
            edge.client.post(f"{PATH}/{name}/cancel", headers=keys.headers("other")),
            edge.client.delete(f"{PATH}/{name}", headers=keys.headers("other")),
        ):
            assert error_of(await request, 404)["code"] == "not_found"
        assert error_of(await edge.client.get(f"{PATH}/{name}"), 401)
        assert (await edge.client.get(f"{PATH}/{name}", headers=keys.headers("again"))).status_code == 200
        backend.holds_after = None
        await wait_until_async(lambda: edge.kept.keeper.kept.by_id[name].end is not None, "the response has not ended")

        async def remaining() -> int:
            found = await edge.client.get(f"{PATH}/{name}", headers=mine)
            return int(found.headers["x-ratelimit-remaining-tokens"])

        while await remaining() < 200:  # the answer's account is settled soon after its end
            await asyncio.sleep(PAUSE_S)
