"""What clients get from a real server: the same text by every way of asking, errors, logs, metrics, and room again."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import main
from benchmarks.resilience.hostile_clients import HostileOutcome, send_all
from benchmarks.resilience.hostile_requests import build_requests
from tests.deployments.cluster.one_server.conftest import MAX_SEQUENCES, MAX_WAITING
from tests.support.metrics import documented, exposed, values
from tests.support.server_process import SpectraServer, StreamedCompletion
from tests.support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.cluster

METHODS = ("autoregressive", "pld", "spectra-core", "p-eagle", "auto")
ENDLESS: dict[str, Any] = {"model": "tiny", "prompt": "Snow falls", "max_tokens": 3900, "ignore_eos": True}


def test_metrics_are_the_documented_ones_and_sum_over_ingresses(server: SpectraServer) -> None:
    """First, because tokens of clients that leave are counted by the router alone."""
    drafted = 0
    for _ in range(6):  # each over a connection of its own: the proxy takes one ingress, then the other
        with httpx.Client(base_url=server.base, timeout=None) as client:
            assert client.get("/v1/models/none").status_code == 404
            body = ENDLESS | {"max_tokens": 30, "logit_bias": {"9": 100}, "speculative": {"method": "pld"}}
            answer = client.post("/v1/completions", json=body).json()
        drafted += answer["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert server.complete(max_tokens=5, temperature=3).status_code == 400

    def is_right() -> bool:
        text = server.http.get("/metrics").text
        tokens, of_ingresses, drafts, refused, running, kv = (
            sum(values(text, name, **labels))
            for name, labels in (
                ("vllm:generation_tokens_total", {}),
                ("spectra:tenant_generation_tokens_total", {}),
                ("vllm:spec_decode_num_draft_tokens_total", {}),
                ("spectra:http_requests_total", {"route": "/v1/models/{name}", "code": "404"}),
                ("vllm:num_requests_running", {}),
                ("vllm:kv_cache_usage_perc", {}),
            )
        )
        counted = tokens == of_ingresses >= 180 and drafts >= drafted > 0
        return counted and (refused, running, kv) == (6, 0, 0) and exposed(text) == documented()

    wait_until(is_right, lambda: server.http.get("/metrics").text)


def test_chats_and_completions_are_the_same_streamed_and_whole(server: SpectraServer) -> None:
    assert server.first_line == f"Ready: {server.base}/v1\n"
    assert [model.id for model in server.openai.models.list()] == ["tiny"]
    chat: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "seed": 5, "max_tokens": 40}
    whole = server.openai.chat.completions.create(**chat)
    chunks = list(server.openai.chat.completions.create(**chat, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    text: Any = {"model": "tiny", "prompt": "Snow", "seed": 5, "max_tokens": 40, "n": 2, "temperature": 1.0}
    choices = server.openai.completions.create(**text).choices
    assert choices[0].text != choices[1].text
    streamed = ["", ""]
    for part in server.openai.completions.create(**text, stream=True):
        streamed[part.choices[0].index] += part.choices[0].text
    assert streamed == [choice.text for choice in choices]


def test_a_seed_gives_the_text_of_spectra_generate_with_every_method(
    server: SpectraServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = ["Snow falls on", "Speculation drafts tokens and"]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"turns": [prompt]}) + "\n" for prompt in prompts))
    flags = ["--max-tokens", "50", "--temperature", "0.9", "--top-p", "0.95", "--seed", "11", "--json", "--raw"]
    capsys.readouterr()
    assert main(["generate", "--model", str(server.checkpoint), "--prompts", str(questions), *flags]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for prompt, line in zip(prompts, lines, strict=True):
        fields = {"prompt": prompt, "max_tokens": 50, "temperature": 0.9, "top_p": 0.95, "seed": 11}
        for method in METHODS:
            speculative = {"method": method, "max_nodes": 16}
            assert server.token_ids(**fields, speculative=speculative) == line["token_ids"], method


def test_only_stages_load_torch(server: SpectraServer) -> None:
    for name in ("Router", "Target", "Ingress"):
        maps = server.process_of(f"ServeReplica:spectra:{name}").memory_maps()
        assert not any("libtorch" in one.path for one in maps), name
    assert any("libtorch" in one.path for one in server.process_of("StageActor").memory_maps())


def test_bad_requests_are_refused_and_a_running_stream_does_not_notice(server: SpectraServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 800, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    expected = server.token_ids(**fields, speculative={"enabled": False})
    stream = StreamedCompletion(server, **fields)
    stream.until(5)
    refused = [
        (404, "model", {"model": "gpt-4"}),
        (400, "speculative.method", {"speculative": {"method": "medusa"}}),
        (400, "speculative.max_nodes", {"speculative": {"method": "pld", "max_nodes": 257}}),
        (400, "prompt", {"prompt": "word " * 5000}),
        (400, "prompt", {"prompt": [1, 10**7]}),
        (400, "n", {"n": 17}),
        (400, "temperature", {"temperature": -1}),
        (400, "frobnicate", {"frobnicate": 1}),
    ]
    for status, param, wrong in refused:
        answer = server.complete(**wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    json_type = {"Content-Type": "application/json"}
    assert server.http.post("/v1/completions", content=b'{"model": ', headers=json_type).status_code == 400
    assert server.http.post("/v1/completions", content=b"x" * 10_000_000, headers=json_type).status_code == 413
    outcome = HostileOutcome()
    asyncio.run(send_all(server.base, build_requests(100, 7, "tiny", {}), 50, outcome))
    assert not outcome.wrong
    assert stream.all_ids() == expected
    server.settled()


def test_logs_of_every_process_name_the_request_and_hold_no_prompt(server: SpectraServer) -> None:
    body = {"model": "tiny", "prompt": "Snow falls", "max_tokens": 5}
    for name, fields in {"served-1": {}, "refused-1": {"temperature": 3}}.items():
        answer = server.http.post("/v1/completions", json=body | fields, headers={"X-Request-Id": name})
        assert answer.headers.get_list("X-Request-Id") == [name]
    unfit = server.http.post("/v1/completions", json=body, headers={"X-Request-Id": "not fit"})
    assert len(unfit.headers["X-Request-Id"]) == 32
    [logs] = [one for one in server.folder.rglob("session_*/logs") if not one.parent.is_symlink()]

    def lines() -> list[dict[str, Any]]:
        files = (*logs.glob("serve/replica_*.log"), *logs.glob("worker-*.err"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines() if line.startswith("{")]

    def of(request: str) -> dict[str, dict[str, Any]]:
        return {line["component"]: line for line in lines() if line.get("request_id") == request}

    wait_until(lambda: {"Ingress", "Router", "Stage-0", "Stage-1"} <= of("served-1").keys(), lambda: of("served-1"))
    ingress = of("served-1")["Ingress"]
    assert (ingress["message"], ingress["completion_tokens"]) == ("POST /v1/completions 200", 5)
    refused = wait_until(lambda: of("refused-1").get("Ingress"))
    assert refused["message"] == "POST /v1/completions 400: temperature is 3; it must be at most 2.0"
    assert "Snow falls" not in str(lines())


def test_requests_of_clients_that_leave_end_before_their_text_does(server: SpectraServer) -> None:
    def generated() -> float:
        return sum(values(server.http.get("/metrics").text, "vllm:generation_tokens_total"))

    before, raw = generated(), json.dumps(ENDLESS | {"n": 8, "stream": True}).encode()
    for _ in range(2):  # before the first token, headers apart from the body as most clients send them
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
            client.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head.encode())
            client.sendall(raw)
            wait_until(lambda: server.health()["sessions"])
        server.settled()
    for method in METHODS:  # in the middle of a stream
        body = ENDLESS | {"stream": True, "speculative": {"method": method}}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_raw())
    server.settled()
    counted = generated()
    server.token_ids(max_tokens=20, ignore_eos=True)
    wait_until(lambda: generated() >= counted + 20)  # metrics lag behind; now all is counted
    asked = 3900 * (2 * 8 + len(METHODS))
    assert generated() - before < asked / 2


async def test_a_full_server_refuses_with_429_and_finishes_what_it_took(server: SpectraServer) -> None:
    async with httpx.AsyncClient(base_url=server.base, timeout=None) as client:
        endless = (client.post("/v1/completions", json=ENDLESS) for _ in range(MAX_SEQUENCES + MAX_WAITING))
        taken = [asyncio.create_task(request) for request in endless]

        def load() -> tuple[int, int]:
            assert not [request.result().text for request in taken if request.done()]
            health = server.health()
            return health["running"], health["waiting"]

        await wait_until_async(lambda: load() == (MAX_SEQUENCES, MAX_WAITING), load)
        refused = await client.post("/v1/completions", json=ENDLESS | {"max_tokens": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert int(refused.headers["Retry-After"]) >= 1
        for request in taken[1:]:
            request.cancel()
        assert (await taken[0]).json()["usage"]["completion_tokens"] == 3900
    server.settled()
