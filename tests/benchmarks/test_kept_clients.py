"""Clients of kept answers, with a server that refuses, breaks connections and changes its mind."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import pytest

from app.load.records import RequestRecord
from app.load.stream import Endpoint, open_session
from benchmarks.resilience import kept_clients
from benchmarks.resilience.kept_clients import PER_BACKGROUND, KeptAnswerClient
from tests.app.conftest import listening
from tests.app.load.conftest import TEXT
from tests.support.keeping_server import KeepingServer

QUESTION = {"model": "tiny", "messages": [], "max_tokens": 8, "stream": True}


async def ask(server: Any, index: int, headers: dict[str, str] | None = None) -> RequestRecord:
    record = RequestRecord(index, 0, None, 0.0)
    with listening(server) as url:
        async with open_session() as session:
            endpoint = Endpoint(f"{url}/v1/chat/completions", headers or {})
            await KeptAnswerClient(session, endpoint).ask(QUESTION, record)
    return record


async def test_a_client_waits_for_a_server_that_refuses_its_first_request() -> None:
    record = await ask(KeepingServer([HTTPStatus.SERVICE_UNAVAILABLE, 300]), 0)
    assert (record.outcome, record.text, record.diverged, record.breaks) == ("ok", TEXT, False, [])


async def test_a_failure_has_its_reason() -> None:
    record = await ask(KeepingServer([HTTPStatus.BAD_REQUEST]), 0)
    assert [record.outcome, *(found.kind for found in record.breaks)] == ["HTTP 400", "HTTP 400"]


@pytest.mark.parametrize(
    ("texts", "diverged"), [(["A", "A fox"], False), (["A fox", "A"], True), (["A fox", "An owl"], True)]
)
async def test_a_background_text_that_changes_is_noticed(
    texts: list[str], diverged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_clients, "POLL_S", 0.0)
    shown, keys = iter([*texts, texts[-1]]), set()

    async def respond(scope: Any, _: Any, send: Any) -> None:
        keys.add(dict(scope["headers"])[b"x-key"])
        is_new = scope["method"] == "POST"
        text = "" if is_new else next(shown)
        status = "completed" if text == texts[-1] else "in_progress"
        found = {"id": "resp_1", "status": status, "output": [{"content": [{"text": text}]}]}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(found).encode()})

    record = await ask(respond, PER_BACKGROUND - 1, {"X-Key": "secret"})
    assert (record.outcome, record.text, record.diverged) == ("ok", texts[-1], diverged)
    assert keys == {b"secret"}
