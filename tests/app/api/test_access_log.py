"""The access log: one line per request at its end, the reason of a refusal, a request id, no text of clients."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import AsyncClient

from app.api.application import create_app
from app.api.edge import Edge
from app.api.http import Api
from app.api.service import ServiceSettings
from app.playground.options import PlaygroundOptions
from app.playground.playground import Playground
from app.telemetry.access_log import MOST_REFUSALS
from app.telemetry.exchange import OTHER
from deployments.observability.logs import LogRateLimiter
from tests.app.conftest import ScriptedBackend, client_of
from tests.support.waiting import wait_until_async

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "x"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "CANARY"}], "max_tokens": 20, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "CANARY"}}
PARTS = [{"type": "text", "text": "CANARY", "a": 1}]
Lines = list[logging.LogRecord]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("spectra.access"), logging.Handler()
    kept: Lines = []
    level = logger.level
    handler.emit = kept.append  # type: ignore[method-assign]
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield kept
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_a_served_request_is_one_line_with_its_figures_and_no_text(client: AsyncClient, lines: Lines) -> None:
    answer = await client.post(CHAT_PATH, json=CHAT | {"user": "ann"}, headers={"X-Request-Id": "r-7"})
    assert answer.headers["X-Request-Id"] == "r-7"
    assert answer.json()["id"] == "chatcmpl-r-7"
    [line] = lines
    fields: dict[str, Any] = vars(line)
    assert line.getMessage() == "POST /v1/chat/completions 200"
    assert (fields["request_id"], fields["tenant"], fields["method"], fields["model"]) == ("r-7", "ann", "pld", "tiny")
    usage = answer.json()["usage"]
    assert fields["prompt_tokens"] == usage["prompt_tokens"]
    assert fields["completion_tokens"] == usage["completion_tokens"]
    assert fields["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert fields["finish_reason"] == "length"
    assert fields["accepted_per_step"] > 0
    assert 0 <= fields["ttft_s"] <= fields["total_s"]
    assert "CANARY" not in str(fields)


async def test_refusals_are_logged_counted_and_cut_in_a_flood(client: AsyncClient, app: Any, lines: Lines) -> None:
    for _ in range(2 * MOST_REFUSALS):
        assert (await client.post(CHAT_PATH, json=CHAT | {"stream_options": {}})).status_code == 400
    assert len(lines) == MOST_REFUSALS
    assert {line.levelname for line in lines} == {"WARNING"}
    assert "stream_options needs stream to be true" in lines[0].getMessage()
    assert vars(lines[0])["code"] == "invalid_request"
    assert (await client.post(CHAT_PATH, json=CHAT | {"temperature": 3})).status_code == 400
    assert lines[-1].getMessage().endswith("400: temperature is 3; it must be at most 2.0")
    assert (await client.post(CHAT_PATH, json=CHAT | {"secret_of_mine": 3})).status_code == 400
    registry = app.state.access_log.metrics.registry
    for field, n in {"stream_options": 2 * MOST_REFUSALS, "temperature": 1, OTHER: 1}.items():
        labels = {"status": "400", "code": "invalid_request", "field": field}
        assert registry.get_sample_value("spectra:http_refusals_total", labels) == n


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT_PATH, {"messages": [{"role": "user", "content": 5, "name": "CANARY"}]}),
        (CHAT_PATH, {"messages": "CANARY"}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": PARTS}]}),
        (CHAT_PATH, {"messages": [USER], "tools": [{"type": "function", "function": {"name": "CANARY !"}}]}),
        (CHAT_PATH, {"messages": [USER], "tools": [TOOL]}),
        (CHAT_PATH, {"messages": [USER], "chat_template_kwargs": {"a": {"b": "CANARY"}}}),
        (TEXT_PATH, {"prompt": "x", "stop": {"a": "CANARY"}}),
        (TEXT_PATH, {"prompt": "x", "metadata": {"a": ["CANARY"]}}),
        (TEXT_PATH, {"prompt": "x", "input": "CANARY"}),
        ("/tokenize", {"prompt": ["CANARY"]}),
    ],
)
async def test_a_logged_refusal_holds_no_client_text(
    client: AsyncClient, lines: Lines, path: str, body: dict[str, Any]
) -> None:
    assert (await client.post(path, json={"model": "tiny"} | body)).status_code == 400
    [line] = lines
    assert "CANARY" not in str(vars(line))
    assert len(line.getMessage().partition("400: ")[2]) > 10


async def test_a_flood_of_equal_lines_is_cut_and_summed_up() -> None:
    left_out: list[object] = []
    gate = LogRateLimiter(2, 60.0, lambda kind, n: left_out.append((kind, n)))
    admitted = [gate.admits("a", now) for now in (0.0, 1.0, 59.99, 59.99)]
    assert admitted == [True, True, False, False]
    assert gate.admits("b", 59.99)
    await wait_until_async(lambda: left_out)
    assert left_out == [("a", 2)]
    assert gate.admits("a", 60.0)


async def test_every_answer_returns_a_request_id_fit_for_a_log(client: AsyncClient) -> None:
    for path in ("/health", "/v1/nothing", "/v1/models", "/v1/models/none"):
        assert re.fullmatch("[0-9a-f]{32}", (await client.get(path)).headers["X-Request-Id"])
        assert (await client.get(path, headers={"X-Request-Id": "a" * 128})).headers["X-Request-Id"] == "a" * 128
    for unfit in ("a" * 129, "two words", "\x1b[31m"):
        answer = await client.post(TEXT_PATH, json={}, headers={"X-Request-Id": unfit})
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["X-Request-Id"])
    stream = await client.post(CHAT_PATH, json=CHAT | {"stream": True}, headers={"X-Request-Id": "s"})
    assert stream.headers.get_list("X-Request-Id") == ["s"]
    assert '"id":"chatcmpl-s"' in stream.text


async def test_a_failed_stream_and_a_disconnect_are_logged(server: str, backend: ScriptedBackend, lines: Lines) -> None:
    async with AsyncClient(base_url=server, timeout=None) as client:
        backend.fails_after = 2
        await client.post(CHAT_PATH, json=CHAT | {"stream": True})
        await wait_until_async(lambda: lines)  # written after the answer
        assert (lines[-1].levelname, vars(lines[-1])["code"]) == ("WARNING", "target_lost")
        assert vars(lines[-1])["completion_tokens"] > 0
        backend.fails_after, backend.holds_after = None, 2
        async with client.stream("POST", CHAT_PATH, json=CHAT | {"stream": True}) as answer:
            await anext(answer.aiter_raw())
    await wait_until_async(lambda: len(lines) == 2)
    assert vars(lines[-1])["client_gone"] is True
    assert vars(lines[-1])["finish_reason"] is None


async def test_probes_and_prompts_are_not_logged_by_default(
    backend: ScriptedBackend, tokenizer: Any, lines: Lines
) -> None:
    def client(**settings: Any) -> AsyncClient:
        playground = Playground(PlaygroundOptions())
        return client_of(create_app(Api(backend, tokenizer, ServiceSettings(**settings)), playground=playground))

    backend.is_healthy = False
    async with client() as plain, client(access_log=False) as quiet, client(log_prompts=True) as loud:
        for path in ("/health", "/ready", "/metrics", "/playground/js/pages/main.js"):
            await plain.get(path)
        assert (await quiet.post(CHAT_PATH, json=CHAT)).status_code == 200
        assert not lines
        assert (await loud.post(CHAT_PATH, json=CHAT)).status_code == 200
    [line] = lines
    assert vars(line)["prompt"] == "user: CANARY"


async def test_handles_take_the_same_bodies_and_are_logged(
    backend: ScriptedBackend, tokenizer: Any, lines: Lines
) -> None:
    api = Api(backend, tokenizer, ServiceSettings())
    edge = Edge(api, create_app(api))
    chat = await edge.generate({"messages": [USER], "temperature": 0})
    assert chat["choices"][0]["message"]["content"] == backend.answer
    events = [event async for event in edge.generate_stream({"input": "hi", "temperature": 0})]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == backend.answer
    assert (await edge.generate({"input": 3}))["error"]["param"] == "input"
    [error] = [chunk async for chunk in edge.generate_stream({"prompt": "x", "max_tokens": 0})]
    assert error["error"]["param"] == "max_tokens"
    assert lines[0].getMessage() == "CALL generate -"
    assert (
        lines[-1].getMessage() == "CALL generate_stream 400: max_tokens is 0; it must be at least 1 unless echo is true"
    )
