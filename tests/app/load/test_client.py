"""The client of ``spectra load`` against a real HTTP server: streams in any cut, and everything that goes wrong."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from app.load.client import Client, Endpoint, Watcher
from app.load.failures import retry_after
from app.load.records import Break, Record
from tests.app.load.conftest import TEXT, Script, answer, chat, event, usage

BODY = {"model": "tiny", "stream": True, "messages": [], "seed": 4}


class Seen(Watcher):
    def __init__(self) -> None:
        self.text = ""
        self.breaks: list[Break] = []

    def chunk(self, record: Record, text: str, now: float) -> None:
        assert now == record.chunks[-1]
        self.text += text

    def broke(self, record: Record, found: Break) -> None:
        self.breaks.append(found)


async def ask(
    session: Any, script: Script, retries: int = 0, timeout: float = 20.0, watcher: Watcher | None = None
) -> Record:
    client = Client(session, Endpoint(f"{script.url}/v1/chat/completions", {}, timeout), retries, watcher)
    record = Record(0, 0, 4, 0.0)
    assert await client.ask(BODY, record) is record
    assert record.ended >= record.sent > 0
    return record


async def test_a_stream_becomes_text_tokens_of_usage_and_a_time_for_every_piece(session: Any, script: Script) -> None:
    metrics = {"speculative_decoding": {"num_spec_steps": 4}}
    script.default = (200, {}, [*answer()[:-2], event(choices=[{"delta": {}, "finish_reason": "length"}]),
                                event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 11}, metrics=metrics),
                                b"data: [DONE]\n\n"])  # fmt: skip
    seen = Seen()
    record = await ask(session, script, watcher=seen)
    assert (record.outcome, record.text, seen.text) == ("ok", TEXT, TEXT)
    assert (record.prompt_tokens, record.completion_tokens, record.finish_reason) == (3, 11, "length")
    assert len(record.chunks) == -(-len(TEXT) // 5), "the role's and the usage's chunks are no text"
    assert record.chunks == sorted(record.chunks)
    assert record.speculation == {"num_spec_steps": 4}
    assert script.bodies == [BODY]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100_000])
async def test_bytes_may_be_cut_anywhere_even_within_characters(session: Any, script: Script, size: int) -> None:
    raw = b": a comment\r\nevent: message\r\n" + b"".join(answer()).replace(b"\n", b"\r\n")
    script.default = (200, {}, [raw[i : i + size] for i in range(0, len(raw), size)])
    record = await ask(session, script)
    assert (record.outcome, record.text, record.completion_tokens) == ("ok", TEXT, 11)


async def test_one_event_may_be_longer_than_any_buffer(session: Any, script: Script) -> None:
    long = "x" * 1_000_000
    script.default = (200, {}, [chat(long), usage(2), b"data: [DONE]\n\n"])
    assert (await ask(session, script)).text == long


async def test_completions_and_reasoning_are_text_too(session: Any, script: Script) -> None:
    thought = event(choices=[{"delta": {"reasoning_content": "hm, "}}])
    script.default = (200, {}, [thought, event(choices=[{"text": "so"}]), b"data: [DONE]\n\n"])
    record = await ask(session, script)
    assert (record.text, record.completion_tokens) == ("hm, so", None)


@pytest.mark.parametrize(
    "cut", [[Script.BREAK], [], [event(error={"message": "target lost", "code": 503})]], ids=["reset", "eof", "error"]
)
async def test_a_broken_stream_is_sent_again_and_goes_on_where_it_broke(
    session: Any, script: Script, cut: list[Any]
) -> None:
    script.replies.append((200, {}, [*answer()[:4], *cut]))
    seen = Seen()
    record = await ask(session, script, retries=1, watcher=seen)
    assert (record.outcome, record.text, record.retries, record.diverged) == ("ok", TEXT, 1, False)
    assert seen.text == TEXT, "what a retry repeats is told once"
    assert seen.breaks == record.breaks
    assert record.breaks[0].kind == ("error event" if cut and cut != [Script.BREAK] else "broken stream")
    assert record.breaks[0].characters == 15
    assert record.breaks[0].recovered == record.chunks[3] - record.breaks[0].at
    assert script.bodies == [BODY, BODY]


async def test_a_retry_may_be_cut_otherwise_and_break_again(session: Any, script: Script) -> None:
    script.replies += [
        (200, {}, [*answer(size=5)[:4], Script.BREAK]),
        (200, {}, [*answer(size=7)[:2], Script.BREAK]),
        (200, {}, [*answer(size=9)[:3], Script.BREAK]),
    ]
    script.default = (200, {}, answer(size=2))
    seen = Seen()
    record = await ask(session, script, retries=3, watcher=seen)
    assert (record.text, seen.text, record.retries, record.diverged) == (TEXT, TEXT, 3, False)
    assert [found.characters for found in record.breaks] == [15, 15, 18]
    assert all(found.recovered is not None for found in record.breaks)


@pytest.mark.parametrize("second", ["Another text altogether, and longer", TEXT[:12]], ids=["another", "shorter"])
async def test_a_retry_that_does_not_repeat_the_text_is_a_divergence(session: Any, script: Script, second: str) -> None:
    script.replies.append((200, {}, [*answer()[:4], Script.BREAK]))
    script.default = (200, {}, answer(second))
    record = await ask(session, script, retries=1)
    assert (record.outcome, record.text, record.diverged) == ("ok", second, True)


async def test_without_retries_left_the_outcome_is_the_kind_of_the_break(session: Any, script: Script) -> None:
    script.replies += [(200, {}, [*answer()[:4], Script.BREAK])] * 2
    record = await ask(session, script, retries=1)
    assert (record.outcome, record.text, record.retries) == ("broken stream", TEXT[:15], 1)
    assert [found.recovered for found in record.breaks] == [None, None]


async def test_a_429_with_retry_after_and_a_5xx_are_sent_again(session: Any, script: Script) -> None:
    body = b'{"error": {"message": "the queue is full"}}'
    script.replies += [(429, {"Retry-After": "0"}, [body]), (503, {}, [b"gone"])]
    record = await ask(session, script, retries=2)
    assert (record.outcome, record.text, record.retries) == ("ok", TEXT, 2)
    told = [(found.kind, found.message, found.status, found.retry_after) for found in record.breaks]
    assert told == [("429", "the queue is full", 429, 0.0), ("HTTP 503", "gone", 503, None)]


async def test_the_client_waits_as_long_as_it_is_told(session: Any, script: Script) -> None:
    script.replies.append((429, {"Retry-After": "1"}, []))
    record = await ask(session, script, retries=1)
    assert record.chunks[0] - record.breaks[0].at >= 1.0


@pytest.mark.parametrize(("status", "outcome"), [(429, "429"), (400, "HTTP 400"), (404, "HTTP 404")])
async def test_what_would_fail_again_is_not_sent_again(session: Any, script: Script, status: int, outcome: str) -> None:
    script.default = (status, {}, [b'{"error": {"message": "no"}}'])
    record = await ask(session, script, retries=5)
    assert (record.outcome, record.breaks[0].message, len(script.bodies)) == (outcome, "no", 1)


async def test_an_event_that_is_no_chunk_fails_the_request(session: Any, script: Script) -> None:
    script.default = (200, {}, [b"data: {no json\n\n"])
    assert (await ask(session, script, retries=3)).outcome == "bad event"
    assert len(script.bodies) == 1


async def test_a_stalled_answer_ends_with_the_timeout(session: Any, script: Script) -> None:
    script.default = (200, {}, [*answer()[:4], Script.HANG])
    record = await ask(session, script, timeout=1.0)
    assert record.outcome == "timeout"
    assert TEXT[:15].startswith(record.text), "as much as came in time"


async def test_a_refused_connection_is_tried_again(session: Any) -> None:
    with socket.socket() as bound:  # bound, not listening: no other process gets the port
        bound.bind(("127.0.0.1", 0))
        client = Client(session, Endpoint(f"http://127.0.0.1:{bound.getsockname()[1]}/v1/completions"), retries=2)
        record = await client.ask(BODY, Record(0, 0, 4, 0.0))
    assert (record.outcome, record.retries, record.chunks) == ("no connection", 2, [])


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0), ("soon", None), (None, None),
     ("inf", None), ("nan", None)],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, now=60.0) == seconds
