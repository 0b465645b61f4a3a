"""The access log: a line per request at its end, the reason of every refusal, an id for all, no text of clients."""

from __future__ import annotations

import asyncio
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.access.options import AccessOptions
from app.api.application import create_app
from app.api.http import Api
from app.api.observed import request_fields
from app.api.service import Settings
from app.playground.options import PlaygroundOptions
from app.playground.playground import Playground
from app.telemetry.access_log import MOST_REFUSALS, AccessLog
from app.telemetry.exchange import Refusal
from app.telemetry.refusals import OTHER
from tests.app.conftest import ScriptedBackend

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    from app.api.edge import Edge

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "CANARY"}], "max_tokens": 20, "temperature": 0}


class Kept(logging.Handler):
    """Keeps what is logged, in the setup of a test too."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


USER = {"role": "user", "content": "x"}
CANARY_TOOL = {"type": "function", "function": {"name": "CANARY"}}


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    logger, kept = logging.getLogger("spectra.access"), Kept()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    yield kept.records
    logger.removeHandler(kept)
    logger.setLevel(level)


async def test_a_served_request_is_one_line_with_its_figures_and_no_text(
    client: httpx.AsyncClient, lines: list[logging.LogRecord]
) -> None:
    answer = await client.post("/v1/chat/completions", json=CHAT | {"user": "ann"}, headers={"X-Request-Id": "r-7"})
    assert answer.headers["X-Request-Id"] == "r-7"
    assert answer.json()["id"] == "chatcmpl-r-7"
    [line] = lines
    said: dict[str, Any] = vars(line)
    assert line.getMessage() == "POST /v1/chat/completions 200"
    assert (said["request_id"], said["tenant"], said["method"], said["model"]) == ("r-7", "ann", "pld", "tiny")
    usage = answer.json()["usage"]
    assert (said["prompt_tokens"], said["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert said["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert said["finish_reason"] == "length"
    assert said["accepted_per_step"] > 0
    assert 0 <= said["ttft_s"] <= said["total_s"]
    assert "CANARY" not in str(said)


async def test_a_public_client_that_is_refused_is_told_why_in_the_log_too_and_cannot_flood_it(
    client: httpx.AsyncClient, app: Any, lines: list[logging.LogRecord]
) -> None:
    body = CHAT | {"max_completion_tokens": 20, "max_tokens": 16, "stream_options": {"include_usage": True}}
    for _ in range(3 * MOST_REFUSALS):
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 400
    assert len(lines) == MOST_REFUSALS
    assert {line.levelname for line in lines} == {"WARNING"}
    assert "stream_options needs stream to be true" in lines[0].getMessage()
    assert vars(lines[0])["code"] == "invalid_request"
    assert (await client.post("/v1/chat/completions", json=CHAT | {"temperature": 3})).status_code == 400
    assert lines[-1].getMessage().endswith("400: temperature is 3; it must be at most 2.0")
    assert (await client.post("/v1/chat/completions", json=CHAT | {"secret_of_mine": 3})).status_code == 400
    log: AccessLog = app.state.access_log
    for field, n in {"stream_options": 3 * MOST_REFUSALS, "temperature": 1, OTHER: 1}.items():
        labels = {"status": "400", "code": "invalid_request", "field": field}
        assert log.metrics.registry.get_sample_value("spectra:http_refusals_total", labels) == n
    log._tell_left_out((400, "invalid_request", "stream_options"), 20)
    assert lines[-1].getMessage() == "20 more requests were refused with 400 invalid_request within 60 s"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5, "name": "CANARY"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "CANARY", "content": "x"}]}),
        ("/v1/chat/completions", {"messages": "CANARY"}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "CANARY", "a": 1}]}]},
        ),
        ("/v1/completions", {"prompt": {"text": "CANARY"}}),
        ("/v1/completions", {"prompt": "x", "suffix": "CANARY"}),
        ("/v1/completions", {"prompt": "x", "stop": {"a": "CANARY"}}),
        ("/v1/completions", {"prompt": "x", "user": ["CANARY"]}),
        ("/v1/completions", {"prompt": "x", "metadata": {"a": ["CANARY"]}}),
        (
            "/v1/chat/completions",
            {"messages": [USER], "tools": [{"type": "function", "function": {"name": "CANARY !"}}]},
        ),
        ("/v1/chat/completions", {"messages": [USER], "tool_choice": "CANARY"}),
        ("/v1/chat/completions", {"messages": [USER], "tools": [CANARY_TOOL, CANARY_TOOL]}),
        ("/v1/chat/completions", {"messages": [USER], "tools": [CANARY_TOOL]}),
        ("/v1/chat/completions", {"messages": [USER], "chat_template_kwargs": {"CANARY": 1}}),
        ("/v1/chat/completions", {"messages": [USER], "chat_template_kwargs": {"a": {"b": "CANARY"}}}),
        ("/v1/completions", {"prompt": "x", "input": "CANARY"}),
        ("/tokenize", {"prompt": ["CANARY"]}),
    ],
)
async def test_a_refusal_in_the_log_holds_no_text_of_the_client(
    client: httpx.AsyncClient, lines: list[logging.LogRecord], path: str, body: dict[str, Any]
) -> None:
    assert (await client.post(path, json={"model": "tiny"} | body)).status_code == 400
    [line] = lines
    assert "CANARY" not in str(vars(line))
    assert len(line.getMessage().partition("400: ")[2]) > 10


async def test_every_answer_returns_an_id_that_is_fit_for_a_log(client: httpx.AsyncClient) -> None:
    for path in ("/health", "/v1/nothing", "/v1/models", "/v1/models/none"):
        assert re.fullmatch("[0-9a-f]{32}", (await client.get(path)).headers["X-Request-Id"])
        assert (await client.get(path, headers={"X-Request-Id": "a" * 128})).headers["X-Request-Id"] == "a" * 128
    for unfit in ("a" * 129, "two words", "\x1b[31m"):
        answer = await client.post("/v1/completions", json={}, headers={"X-Request-Id": unfit})
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["X-Request-Id"])
    stream = await client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers={"X-Request-Id": "s"})
    assert stream.headers.get_list("X-Request-Id") == ["s"]
    assert '"id":"chatcmpl-s"' in stream.text


async def test_the_request_carries_its_id_to_the_backend(client: httpx.AsyncClient, backend: ScriptedBackend) -> None:
    await client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "n": 2}, headers={"X-Request-Id": "q"})
    assert [(seen.id, seen.request_id) for seen in backend.seen] == [("cmpl-q-0", "q"), ("cmpl-q-1", "q")]


async def test_a_stream_that_fails_and_a_client_that_goes_are_seen(
    server: str, backend: ScriptedBackend, lines: list[logging.LogRecord]
) -> None:
    async with httpx.AsyncClient(base_url=server) as client:
        backend.fails_after = 2
        await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
        while not lines:  # the server writes it when the answer has gone
            await asyncio.sleep(0.01)
        assert (lines[-1].levelname, vars(lines[-1])["code"]) == ("WARNING", "target_lost")
        assert vars(lines[-1])["completion_tokens"] > 0
        backend.fails_after, backend.delay = None, 0.05
        async with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as answer:
            await anext(answer.aiter_raw())
    while len(lines) < 2:
        await asyncio.sleep(0.01)
    assert vars(lines[-1])["client_gone"] is True
    assert vars(lines[-1])["finish_reason"] is None


async def test_probes_are_not_logged_and_prompts_only_if_wanted(
    backend: ScriptedBackend, tokenizer: Any, client: httpx.AsyncClient, lines: list[logging.LogRecord]
) -> None:
    backend.is_healthy = False
    for path in ("/health", "/ready", "/metrics"):
        await client.get(path)
    pages = create_app(Api(backend, tokenizer, Settings()), playground=Playground(PlaygroundOptions()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=pages), base_url="http://edge") as browser:
        assert (
            await browser.get("/playground/js/pages/main.js")
        ).status_code == 200  # of a page's files, likewise none
    assert not lines
    loud = create_app(Api(backend, tokenizer, Settings(log_prompts=True)))
    quiet = create_app(Api(backend, tokenizer, Settings(access_log=False)))
    for app in (quiet, loud):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge") as other:
            assert (await other.post("/v1/chat/completions", json=CHAT)).status_code == 200
    [line] = lines
    assert vars(line)["prompt"] == "user: CANARY"


async def test_calls_of_handles_have_lines_too(
    backend: ScriptedBackend, tokenizer: Any, lines: list[logging.LogRecord]
) -> None:
    edge = Edge(Api(backend, tokenizer, Settings()), AccessOptions(), None)
    await edge.generate({"prompt": "x", "max_tokens": 5})
    chunks = [chunk async for chunk in edge.generate_stream({"prompt": "x", "max_tokens": 0})]
    assert chunks[0]["error"]["param"] == "max_tokens"
    assert [line.getMessage() for line in lines] == [
        "CALL generate -",
        "CALL generate_stream 400: max_tokens is 0; it must be at least 1",
    ]


def test_fields_are_those_of_the_schemas() -> None:
    fields = request_fields()
    assert fields.named("messages[3].role") == "messages.role"
    assert fields.named("messages[3].rôle") == "messages"
    assert fields.named("speculative.method") == "speculative.method"
    assert fields.named("x" * 1000) == OTHER
    assert {"temperature", "seed", "stream", "verification", "model", "top_k"} <= fields.shown
    assert not {"messages", "prompt", "stop", "user", "suffix", "tokens", "cache_salt"} & fields.shown
    assert len(fields.loggable(Refusal(400, "c", "temperature", "x" * 1000))) == 200
