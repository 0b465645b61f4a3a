"""One real server, started as a user starts it, and everything a client may do to it; the last test stops it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import main
from benchmarks.resilience.hostile.clients import Outcome, send_all
from benchmarks.resilience.hostile.requests import hostile_requests
from tests.support.metrics import documented, exposed
from tests.support.server_process import FLAGS, Server, Stream, check_stopped, running, spectra

pytestmark = pytest.mark.cluster

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    with running(tiny_checkpoint, (*FLAGS, "--log-format", "json", "--log-level", "debug")) as started:
        yield started


def test_ready_is_printed_once_a_request_succeeds(server: Server) -> None:
    assert server.first_line == f"Ready: {server.base}/v1\n"
    assert len(server.token_ids(max_tokens=5, temperature=0, ignore_eos=True)) == 5
    assert [model.id for model in server.openai.models.list()] == ["tiny"]
    assert server.http.get("/version").status_code == 200


def test_completions_and_chats_streamed_and_whole_are_the_same_through_the_openai_client(server: Server) -> None:
    chat: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "seed": 5, "max_tokens": 40}
    whole = server.openai.chat.completions.create(**chat)
    chunks = list(server.openai.chat.completions.create(**chat, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    text: Any = {"model": "tiny", "prompt": "Snow", "seed": 5, "max_tokens": 40, "n": 2, "temperature": 1.0}
    answer = server.openai.completions.create(**text)
    assert answer.usage is not None
    assert answer.choices[0].text != answer.choices[1].text
    streamed = ["", ""]
    for part in server.openai.completions.create(**text, stream=True):
        streamed[part.choices[0].index] += part.choices[0].text
    assert streamed == [choice.text for choice in answer.choices]


def test_a_seed_gives_the_same_text_under_every_method_and_the_text_of_spectra_generate(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = ["Snow falls on", "The quick brown fox", "Speculation drafts tokens and"]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"turns": [prompt]}) + "\n" for prompt in prompts))
    flags = ["--max-new-tokens", "50", "--temperature", "0.9", "--top-p", "0.95", "--seed", "11", "--json", "--raw"]
    capsys.readouterr()
    assert main(["generate", "--model", str(server.checkpoint), "--prompts", str(questions), *flags]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for prompt, line in zip(prompts, lines, strict=True):
        for method in METHODS:
            ids = server.token_ids(
                prompt=prompt,
                max_tokens=50,
                temperature=0.9,
                top_p=0.95,
                seed=11,
                speculative={"method": method, "max_nodes": 16},
            )
            assert ids == line["token_ids"], method


def test_stages_alone_load_torch(server: Server) -> None:
    for name, has_torch in (
        ("ServeReplica:spectra:Router", False),
        ("ServeReplica:spectra:Target", False),
        ("ServeReplica:spectra:Ingress", False),
        ("StageActor", True),
    ):
        mapped = server.process_of(name).memory_maps()
        assert any("libtorch" in one.path for one in mapped) is has_torch, name


def test_a_request_chooses_its_speculation_and_is_told_what_it_did(server: Server) -> None:
    fields: dict[str, Any] = {"max_tokens": 60, "temperature": 0, "ignore_eos": True, "logit_bias": {"9": 100}}
    plain = server.complete(**fields, speculative={"enabled": False}).json()
    figures = plain["metrics"]["speculative_decoding"]
    assert (figures["num_draft_tokens"], figures["num_spec_steps"], figures["by_source"]) == (0, 59, {})
    assert (figures["num_spec_tokens"], figures["acceptance_histogram"]) == (0, [59])
    drafted = server.complete(**fields, speculative={"method": "pld", "max_nodes": 4}).json()
    figures = drafted["metrics"]["speculative_decoding"]
    assert drafted["choices"] == plain["choices"]
    assert figures["num_spec_steps"] < 30
    assert figures["by_source"]["pld"]["accepted"] == figures["num_accepted_draft_tokens"] > 30
    assert figures["num_draft_tokens"] <= 4 * figures["num_spec_steps"]
    assert (figures["num_spec_tokens"], sum(figures["acceptance_histogram"])) == (4, figures["num_spec_steps"])


def test_bad_requests_get_their_status_and_a_running_stream_does_not_notice(server: Server) -> None:
    fields: dict[str, Any] = {"max_tokens": 800, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    stream = Stream(server, **fields)
    stream.until(5)
    expected = [
        (404, "model", {"model": "gpt-4"}),
        (400, "speculative.method", {"speculative": {"method": "magic"}}),
        (400, "speculative.method", {"speculative": {"method": "medusa"}}),
        (400, "speculative.max_nodes", {"speculative": {"method": "pld", "max_nodes": 257}}),
        (400, "prompt", {"prompt": "word " * 5000}),
        (400, "prompt", {"prompt": [1, 10**7]}),
        (400, "prompt", {"prompt": ""}),
        (400, "prompt", {"max_tokens": 4096}),
        (400, "n", {"n": 17}),
        (400, "temperature", {"temperature": -1}),
        (400, "frobnicate", {"frobnicate": 1}),
    ]
    for status, param, wrong in expected:
        answer = server.complete(**wrong)
        assert answer.status_code == status, (wrong, answer.text)
        error = answer.json()["error"]
        assert error["param"] == param, error
        assert error["message"]
    json_type = {"Content-Type": "application/json"}
    assert server.http.post("/v1/completions", content=b'{"model": ', headers=json_type).status_code == 400
    assert server.http.post("/v1/completions", content=b"x" * 10_000_000, headers=json_type).status_code == 413
    assert server.http.post("/v1/completions", content=b"{}").status_code == 415
    assert server.http.get("/v1/nothing").status_code == 404
    assert not stream.errors
    ids = stream.all_ids()
    assert len(ids) == 800
    assert ids == server.token_ids(**fields, speculative={"enabled": False})
    server.settled()


def test_a_request_is_found_by_its_id_in_the_lines_of_every_process_and_a_refused_one_with_its_reason(
    server: Server,
) -> None:
    body = {"model": "tiny", "prompt": "Snow falls", "max_tokens": 5}
    answers = {
        name: server.http.post("/v1/completions", json=body | fields, headers={"X-Request-Id": name})
        for name, fields in {"served-1": {}, "refused-1": {"temperature": 3}, "not fit": {}}.items()
    }
    returned = [answer.headers.get_list("X-Request-Id") for answer in answers.values()]
    assert returned[:2] == [["served-1"], ["refused-1"]]
    assert [len(one) for one in returned[2]] == [32]
    assert answers["served-1"].json()["id"] == "cmpl-served-1"
    [logs] = [one for one in server.folder.rglob("session_*/logs") if not one.parent.is_symlink()]
    deadline = time.monotonic() + 240
    while True:
        lines = [
            json.loads(line)
            for file in (*logs.glob("serve/replica_*.log"), *logs.glob("worker-*.err"))
            for line in file.read_text().splitlines()
            if line.startswith("{") or file.parent.name == "serve"  # of Serve's files, every line
        ]
        served = {line["component"]: line for line in lines if line.get("request_id") == "served-1"}
        if {"Ingress", "Router", "Stage-0"} <= served.keys():
            break
        assert time.monotonic() < deadline, served
        time.sleep(0.1)
    assert served["Ingress"]["message"] == "POST /v1/completions 200"
    assert (served["Ingress"]["completion_tokens"], served["Ingress"]["finish_reason"]) == (5, "length")
    [refused] = [line for line in lines if line.get("request_id") == "refused-1"]
    assert (refused["levelname"], refused["field"]) == ("WARNING", "temperature")
    assert refused["message"] == "POST /v1/completions 400: temperature is 3; it must be at most 2.0"
    assert "Snow falls" not in str(lines)
    assert all(json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{"))


def test_two_hundred_clients_that_go_leave_nothing_behind(server: Server) -> None:
    chance = random.Random(1)
    fields = {"model": "tiny", "prompt": "Snow falls", "max_tokens": 3900, "ignore_eos": True}  # many seconds

    async def go_away(client: httpx.AsyncClient, turn: asyncio.Semaphore, number: int) -> None:
        body = fields | {"speculative": {"method": METHODS[number % 4]}, "n": 1 + (number % 8 == 0)}
        async with turn:
            if number % 3:
                async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
                    async for _ in answer.aiter_raw():
                        if chance.random() < 0.5:
                            break
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(client.post("/v1/completions", json=body), chance.random() * 0.3)

    async def all_of_them() -> None:
        turn = asyncio.Semaphore(6)
        async with httpx.AsyncClient(base_url=server.base, timeout=240) as client:
            await asyncio.gather(*(go_away(client, turn, number) for number in range(200)))

    asyncio.run(all_of_them())
    server.settled(within=5.0)
    assert len(server.token_ids(max_tokens=5, ignore_eos=True)) == 5


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_before_its_answer_begins_frees_its_place_at_once(server: Server, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "Snow falls", "max_tokens": 3900, "ignore_eos": True, "n": 8, "stream": stream}
    raw = json.dumps(body).encode()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
            client.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head.encode())
            time.sleep(0.02)
            client.sendall(raw)  # apart from the headers, as most clients send it
            while not server.health()["sessions"]:
                time.sleep(0.01)
        server.settled(within=5.0)
        assert server.health()["sessions"] == 0


def test_a_full_server_says_when_to_come_back_and_serves_those_it_took(server: Server) -> None:
    async def crowd() -> list[httpx.Response]:
        fields = {"model": "tiny", "prompt": "Snow", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
        async with httpx.AsyncClient(base_url=server.base, timeout=240) as client:
            return await asyncio.gather(*(client.post("/v1/completions", json=fields) for _ in range(40)))

    answers = asyncio.run(crowd())
    refused = [answer for answer in answers if answer.status_code == 429]
    taken = [answer for answer in answers if answer.status_code == 200]
    assert refused
    assert len(taken) >= 8
    assert len(refused) + len(taken) == 40
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert refused[0].json()["error"]["code"] == "overloaded"
    assert len({answer.json()["choices"][0]["text"] for answer in taken}) == 1
    server.settled()


def test_hostile_requests_change_no_text_and_leave_nothing(server: Server) -> None:
    fields: dict[str, Any] = {"max_tokens": 900, "temperature": 0.8, "seed": 12, "ignore_eos": True}
    wanted = server.token_ids(**fields)
    stream = Stream(server, **fields)
    outcome = Outcome()
    asyncio.run(send_all(server.base, hostile_requests(200, 7, "tiny", {}), 100, outcome))
    assert not outcome.wrong
    assert outcome.statuses["400"] > 80
    assert stream.all_ids() == wanted
    server.settled()


def test_the_manual_lists_the_metrics_that_a_scrape_has(server: Server) -> None:
    assert server.complete(max_tokens=5, temperature=3).status_code == 400
    server.token_ids(max_tokens=30, temperature=0, logit_bias={"9": 100}, speculative={"method": "pld"})
    deadline = time.monotonic() + 240
    while (found := exposed(server.http.get("/metrics").text)) != documented():
        assert time.monotonic() < deadline, (found - documented(), documented() - found)
        time.sleep(0.1)


def test_metrics_are_those_of_vllm(server: Server) -> None:
    def scrape() -> dict[str, float]:
        lines = [line for line in server.http.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}

    before = scrape()
    answer = server.complete(max_tokens=30, temperature=0, ignore_eos=True).json()
    after = scrape()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["vllm:generation_tokens_total"] == 30
    assert grown["vllm:prompt_tokens_total"] == answer["usage"]["prompt_tokens"]
    figures = answer["metrics"]["speculative_decoding"]
    assert grown["vllm:spec_decode_num_draft_tokens_total"] == figures["num_draft_tokens"]
    assert grown["vllm:spec_decode_num_accepted_tokens_total"] == figures["num_accepted_draft_tokens"]
    assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0


def test_streams_go_on_with_the_same_text_when_the_stage_is_killed(server: Server) -> None:
    fields: dict[str, Any] = {"max_tokens": 600, "temperature": 0.8, "seed": 8, "ignore_eos": True}
    wanted = server.token_ids(**fields)
    streams = [Stream(server, **fields), Stream(server, **fields, speculative={"method": "pld"})]
    for stream in streams:
        stream.until(50)
    stage = server.process_of("StageActor")
    stage.kill()
    assert [stream.all_ids() for stream in streams] == [wanted, wanted]
    assert server.process_of("StageActor").pid != stage.pid
    assert server.settled()["pipelines_lost"] >= 1


def test_a_port_that_is_taken_is_one_clear_line_and_starts_nothing(server: Server) -> None:
    before = sorted(server.folder.rglob("session_*"))
    command = [spectra(), "serve", "--model", str(server.checkpoint), "--port", str(server.port)]
    environment = os.environ | {"TMPDIR": str(server.folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        done.stderr.splitlines()[-1] == f"spectra: port {server.port} on 127.0.0.1 is taken; choose another with --port"
    )
    assert "Traceback" not in done.stderr
    assert before
    assert sorted(server.folder.rglob("session_*")) == before  # no Ray was started
    server.settled()


def test_a_term_signal_lets_the_running_stream_end_and_leaves_no_process(server: Server) -> None:
    stream = Stream(server, max_tokens=300, ignore_eos=True, temperature=0.8, seed=4)
    stream.until(5)
    processes = server.processes()
    assert len(processes) > 8
    os.kill(server.process.pid, signal.SIGTERM)
    assert len(stream.all_ids()) == 300
    check_stopped(server, processes)
