"""The client of ``spectra load``: streams cut anywhere, retries, and failures."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from app.load import client as clients
from app.load.client import LoadClient
from app.load.records import RequestRecord
from app.load.stream import Endpoint, open_session, retry_after
from tests.app.load.conftest import TEXT, Script, answer, chat, event, usage
from tests.support.waiting import LIMIT_S

BODY = {"model": "tiny", "stream": True, "messages": [], "seed": 4}
BROKEN = [*answer()[:4], Script.BREAK]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client waits before retries, without waiting."""
    seconds: list[float] = []

    async def sleep(wait: float) -> None:
        seconds.append(wait)

    monkeypatch.setattr(clients, "asyncio", SimpleNamespace(sleep=sleep))
    return seconds


async def ask(url: str, retries: int = 0, timeout: float = LIMIT_S) -> RequestRecord:
    record = RequestRecord(0, 0, 4, 0.0)
    async with open_session() as session:
        client = LoadClient(session, Endpoint(f"{url}/v1/chat/completions", {}, timeout), retries)
        assert await client.ask(BODY, record) is record
    assert record.ended >= record.sent > 0
    return record


async def test_a_stream_becomes_text_token_counts_and_a_time_for_every_chunk(script: Script) -> None:
    counts = {"prompt_tokens": 3, "completion_tokens": 11}
    metrics = {"speculative_decoding": {"num_spec_steps": 4}}
    end = [event(choices=[{"delta": {}, "finish_reason": "length"}]), event(choices=[], usage=counts, metrics=metrics)]
    script.default = (200, {}, [*answer()[:-2], *end, b"data: [DONE]\n\n"])
    record = await ask(script.url)
    assert (record.outcome, record.text) == ("ok", TEXT)
    assert (record.prompt_tokens, record.completion_tokens, record.finish_reason) == (3, 11, "length")
    assert len(record.chunks) == -(-len(TEXT) // 5), "the chunks of role and usage are no text"
    assert record.chunks == sorted(record.chunks)
    assert record.speculation == {"num_spec_steps": 4}
    assert script.bodies == [BODY]


CRLF = b": a comment\r\nevent: message\r\n" + b"".join(answer()).replace(b"\n", b"\r\n")
THOUGHT = event(choices=[{"delta": {"reasoning_content": "hm, "}}])
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("parts", "text", "n_tokens"),
    [
        *(([CRLF[i : i + size] for i in range(0, len(CRLF), size)], TEXT, 11) for size in (1, 2, 7, 100_000)),
        ([chat("x" * 1_000_000), usage(2), DONE], "x" * 1_000_000, 2),
        ([THOUGHT, event(choices=[{"text": "so"}]), DONE], "hm, so", None),
    ],
    ids=["1", "2", "7", "whole", "a long event", "reasoning and completions"],
)
async def test_events_may_be_cut_anywhere(script: Script, parts: list[bytes], text: str, n_tokens: int | None) -> None:
    script.default = (200, {}, parts)
    record = await ask(script.url)
    assert (record.outcome, record.text, record.completion_tokens) == ("ok", text, n_tokens)


@pytest.mark.parametrize(
    ("cut", "kind"),
    [
        ([Script.BREAK], "broken stream"),
        ([], "broken stream"),
        ([event(error={"message": "target lost", "code": 503})], "error event"),
    ],
    ids=["reset", "eof", "error"],
)
async def test_a_broken_stream_is_retried_and_resumed(script: Script, cut: list[Any], kind: str) -> None:
    script.replies.append((200, {}, [*answer()[:4], *cut]))
    record = await ask(script.url, retries=1)
    assert (record.outcome, record.text, record.retries, record.diverged) == ("ok", TEXT, 1, False)
    assert len(record.chunks) == -(-len(TEXT) // 5), "text that a retry repeats is counted once"
    assert (record.breaks[0].kind, record.breaks[0].characters) == (kind, 15)
    assert record.breaks[0].recovered == record.chunks[3] - record.breaks[0].at
    assert script.bodies == [BODY, BODY]


async def test_retries_may_be_cut_differently_and_back_off(script: Script, waits: list[float]) -> None:
    for size, n in ((5, 4), (7, 2), (9, 3)):
        script.replies.append((200, {}, [*answer(size=size)[:n], Script.BREAK]))
    script.default = (200, {}, answer(size=2))
    record = await ask(script.url, retries=3)
    assert (record.text, record.retries, record.diverged) == (TEXT, 3, False)
    assert len(record.chunks) == 3 + 0 + 1 + 5, "pieces that end beyond the 0, 15, 15 and 18 characters known before"
    assert [found.characters for found in record.breaks] == [15, 15, 18]
    assert all(found.recovered is not None for found in record.breaks)
    assert waits == [0.1, 0.2, 0.4]


async def test_a_429_with_retry_after_and_a_5xx_are_retried(script: Script, waits: list[float]) -> None:
    body = b'{"error": {"message": "the queue is full"}}'
    script.replies += [(429, {"Retry-After": "7"}, [body]), (503, {}, [b"gone"])]
    record = await ask(script.url, retries=2)
    assert (record.outcome, record.text, record.retries) == ("ok", TEXT, 2)
    found = [(one.kind, one.message, one.status, one.retry_after) for one in record.breaks]
    assert found == [("429", "the queue is full", 429, 7.0), ("HTTP 503", "gone", 503, None)]
    assert waits == [7.0, 0.2]


REFUSAL = b'{"error": {"message": "no"}}'


@pytest.mark.parametrize(
    ("reply", "retries", "outcome", "n_requests"),
    [
        ((200, {}, BROKEN), 1, "broken stream", 2),
        ((429, {}, [REFUSAL]), 5, "429", 1),
        ((400, {}, [REFUSAL]), 5, "HTTP 400", 1),
        ((200, {}, [b"data: {no json\n\n"]), 3, "bad event", 1),
    ],
)
async def test_the_outcome_of_a_failed_request_is_the_kind_of_its_last_break(
    script: Script, reply: Any, retries: int, outcome: str, n_requests: int
) -> None:
    script.default = reply
    record = await ask(script.url, retries)
    assert (record.outcome, len(script.bodies)) == (outcome, n_requests)
    assert record.text == (TEXT[:15] if reply[2] is BROKEN else "")
    assert [found.recovered for found in record.breaks] == [None] * n_requests


async def test_a_stalled_answer_times_out_and_a_refused_connection_is_retried(script: Script) -> None:
    script.default = (200, {}, [*answer()[:4], Script.HANG])
    record = await ask(script.url, timeout=0.5)
    assert record.outcome == "timeout"
    assert TEXT[:15].startswith(record.text)
    with socket.socket() as bound:  # bound but not listening: no other process gets the port
        bound.bind(("127.0.0.1", 0))
        record = await ask(f"http://127.0.0.1:{bound.getsockname()[1]}", retries=2)
    assert (record.outcome, record.retries, record.chunks) == ("no connection", 2, [])


def test_retry_after_is_seconds_or_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 60.0)
    expected = {"3": 3.0, "0.5": 0.5, "-1": 0.0, "Thu, 01 Jan 1970 00:01:40 GMT": 40.0}
    expected |= dict.fromkeys(("soon", "inf", "nan", None))
    assert {header: retry_after(header) for header in expected} == expected
