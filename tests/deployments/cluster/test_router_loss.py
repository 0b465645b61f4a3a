"""A real server whose router or ingress is killed or stopped in the middle of streams; the last test stops it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.metrics import values
from tests.support.server_process import FLAGS, READY_S, STOP_S, Server, Stream, running

pytestmark = pytest.mark.cluster

ROUTER = "ServeReplica:spectra:Router"
INGRESS = "ServeReplica:spectra:Ingress"
METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
ROOM = ("--max-sequences", "8", "--kv-gib", "0.05")
LONG = 600  # tokens: many times what is written before a process is killed


class Breakable(Stream):
    """A stream whose connection may break."""

    def _read(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            super()._read()


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    with running(tiny_checkpoint, (*FLAGS, *ROOM, "--ingress-replicas", "2")) as started:
        yield started


def job(number: int, n_tokens: int = LONG) -> dict[str, Any]:
    """A request whose text follows from its number, whatever its method."""
    temperature = 0.0 if number % 4 == 3 else 0.8
    sampling = {"temperature": temperature, "seed": number, "max_tokens": n_tokens, "ignore_eos": True}
    return sampling | {"speculative": {"method": METHODS[number % 4]}}


def plain(number: int) -> dict[str, Any]:
    return job(number) | {"speculative": {"enabled": False}}


def constrained(server: Server) -> list[dict[str, Any]]:
    """A request whose text keeps to a pattern, and one whose text is predicted, but for a few words in between."""
    pattern = {"structured_outputs": {"regex": "[a-z ]{1500,}"}, "ignore_eos": False}
    text = server.complete(**plain(5)).json()["choices"][0]["text"]
    wrong = f"{text[:100]} something else {text[120:]}"
    predicted = {"prediction": {"type": "content", "content": wrong}, "speculative": {"max_nodes": 4}}
    return [job(4) | pattern, job(5) | predicted]


@pytest.fixture(scope="module")
def texts(server: Server) -> list[list[int]]:
    """Of the jobs, undisturbed."""
    with ThreadPoolExecutor(8) as crowd:
        return list(crowd.map(lambda number: server.token_ids(**plain(number)), range(8)))


def healthy_again(server: Server, lost: int) -> dict[str, Any]:
    """Health once a new router serves; until then no answer may say that all is well."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            if server.http.get("/ready").status_code == httpx.codes.OK:
                health = server.health()
                assert health["router_pid"] != lost, "a dead router was said to be ready"
                return health
        time.sleep(0.1)
    raise AssertionError("no router comes up")


def test_metrics_are_sums_over_ingresses_whichever_is_scraped(server: Server) -> None:
    for number in range(12):  # each over a connection of its own: the proxy takes one ingress, then the other
        with httpx.Client(base_url=server.base, timeout=240) as client:
            assert client.get(f"/v1/models/none-{number}").status_code == 404
            fields = {"model": "tiny", "prompt": "Snow", "max_tokens": 5}
            assert client.post("/v1/completions", json=fields).status_code == 200
    deadline, right = time.monotonic() + 240, 0
    while right < 10:  # in a row: scrapes of both
        with httpx.Client(base_url=server.base, timeout=240) as client:
            text = client.get("/metrics").text
        refused = values(text, "spectra:http_requests_total", route="/v1/models/{name}", method="GET", code="404")
        at_ingresses = sum(values(text, "spectra:tenant_generation_tokens_total"))
        at_the_router = sum(values(text, "vllm:generation_tokens_total"))
        ingresses = values(text, "spectra:process_resident_memory_bytes", process="ingress")
        found = (sum(refused), at_ingresses == at_the_router > 12, len(ingresses))
        right = right + 1 if found == (12, True, 2) else 0
        assert time.monotonic() < deadline, f"{found}, {at_ingresses} and {at_the_router} tokens"
        time.sleep(0.05)


def test_streams_and_answers_go_on_with_the_same_texts_when_the_router_is_killed(
    server: Server, texts: list[list[int]]
) -> None:
    pattern, predicted = constrained(server)
    spelled = server.token_ids(**pattern | {"speculative": {"enabled": False}})
    with ThreadPoolExecutor(2) as pool:
        whole = [pool.submit(server.complete, return_token_ids=True, **job(number)) for number in (1, 2)]
        streams = [Stream(server, **job(number)) for number in range(6)]
        for stream in streams:
            stream.until(30)
        streams += [Stream(server, **fields) for fields in (pattern, predicted)]
        for stream in streams[-2:]:
            stream.until(30)
        assert all(stream.is_running for stream in streams[-2:])
        router = server.process_of(ROUTER)
        router.kill()
        router.wait(60)
        healthy_again(server, router.pid)
        assert [stream.all_ids() for stream in streams] == [*texts[:6], spelled, texts[5]]
        for number, answer in zip((1, 2), whole, strict=True):
            body = answer.result().json()
            assert body["choices"][0]["token_ids"] == texts[number]
            figures = body["metrics"]["speculative_decoding"]
            assert body["usage"]["completion_tokens"] == LONG
            # A step that is cut at the end may count an accepted node for its bonus token.
            assert 0 <= 1 + figures["num_spec_steps"] + figures["num_accepted_draft_tokens"] - LONG <= 1
            assert figures["num_accepted_draft_tokens"] <= figures["num_draft_tokens"]
    server.settled()


def test_a_router_that_hangs_is_replaced_and_comes_back_to_nothing(server: Server, texts: list[list[int]]) -> None:
    streams = [Stream(server, **job(number)) for number in range(8)]
    for stream in streams:
        stream.until(30)
    router = server.process_of(ROUTER)
    router.send_signal(signal.SIGSTOP)
    try:
        healthy_again(server, router.pid)
    finally:
        with contextlib.suppress(Exception):  # Serve may have killed it
            router.send_signal(signal.SIGCONT)
    assert [stream.all_ids() for stream in streams] == texts
    router.wait(30)
    assert server.settled()["router_pid"] != router.pid


def test_an_ingress_that_is_killed_leaves_nothing_in_the_router_and_its_requests_can_be_repeated(
    server: Server, texts: list[list[int]]
) -> None:
    streams = [Breakable(server, **job(number)) for number in range(8)]
    for stream in streams:
        stream.until(10)
    server.process_of(INGRESS).kill()
    for stream in streams:
        stream.join()
    broken = [number for number, stream in enumerate(streams) if stream.ended_with != "data: [DONE]"]
    for number, stream in enumerate(streams):
        assert stream.token_ids == texts[number][: len(stream.token_ids)]
        assert number in broken or stream.token_ids == texts[number]
    server.settled()
    assert [server.token_ids(**job(number)) for number in broken] == [texts[number] for number in broken]
    server.settled()


def test_a_server_whose_ray_has_died_stops_soon_and_leaves_no_process(server: Server) -> None:
    processes = server.processes()
    server.process_of("gcs_server").kill()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(STOP_S)
    assert psutil.wait_procs(processes, timeout=5)[1] == []
