"""Processes of a real server are killed in the middle of streams: texts stay the same, only the dead are replaced."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.deployments.cluster.one_server.conftest import MAX_SEQUENCES
from tests.support.server_process import SpectraServer, StreamedCompletion
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

ROUTER, TARGET, INGRESS = (f"ray::ServeReplica:spectra:{name}" for name in ("Router", "Target", "Ingress"))
STAGE = "ray::StageActor"
METHODS = ("autoregressive", "pld", "spectra-core", "pld+p-eagle", "p-eagle", "auto")
JOBS = range(len(METHODS))
N_TOKENS = 600  # many times what is written before a process is killed


def job(number: int) -> dict[str, Any]:
    """Return a request whose text depends on its number, not on its method."""
    sampling = {"temperature": 0.8 if number % 2 else 0.0, "seed": number, "max_tokens": N_TOKENS, "ignore_eos": True}
    return sampling | {"speculative": {"method": METHODS[number % len(METHODS)]}}


@pytest.fixture(scope="module")
def texts(server: SpectraServer) -> list[list[int]]:
    """The undisturbed answers to the jobs."""
    with ThreadPoolExecutor(MAX_SEQUENCES) as pool:
        plain = [job(number) | {"speculative": {"enabled": False}} for number in JOBS]
        return list(pool.map(lambda fields: server.token_ids(**fields), plain))


def alive(server: SpectraServer, title: str) -> list[psutil.Process]:
    """Return the running processes of one kind, oldest first."""
    found = []
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith(title) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def wait_until_gone(processes: list[psutil.Process]) -> None:
    def running(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    wait_until(lambda: not any(map(running, processes)), f"some of {processes} still run")


def streams(
    server: SpectraServer, stream: Callable[..., StreamedCompletion] = StreamedCompletion
) -> list[StreamedCompletion]:
    started = [stream(server, **job(number)) for number in JOBS]
    for one in started:
        one.until(30)
    return started


def ready_again(server: SpectraServer, lost: psutil.Process) -> None:
    """Wait for a new router; a health of the dead one is an error."""

    def is_ready() -> bool:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            if server.http.get("/ready").status_code == httpx.codes.OK:
                assert server.health()["router_pid"] != lost.pid, "a dead router was reported as ready"
                return True
        return False

    wait_until(is_ready, "no router is ready")


@pytest.mark.parametrize("n_lost", [1, 2])
def test_killed_stages_are_replaced_alone(server: SpectraServer, texts: list[list[int]], n_lost: int) -> None:
    targets, stages = alive(server, TARGET), alive(server, STAGE)
    victims, others = stages[:n_lost], stages[n_lost:]
    lost_before = server.health()["pipelines_lost"]
    running = streams(server)
    for victim in victims:
        victim.kill()
    assert [stream.all_ids() for stream in running] == texts
    wait_until_gone(victims)
    wait_until(lambda: server.health()["pipelines_lost"] > lost_before, "the loss was not noticed")
    wait_until(lambda: len(alive(server, STAGE)) == len(stages), "a stage was not replaced")
    assert [process for process in alive(server, STAGE) if process in others] == others
    assert alive(server, TARGET) == targets
    server.settled()
    logs = "".join(log.read_text() for log in server.folder.glob("ray/session_*/logs/serve/*Target*.log"))
    assert "is lost and will be replaced: ActorDiedError" in logs


def test_a_killed_target_leaves_no_orphans_not_even_a_stopped_stage(
    server: SpectraServer, texts: list[list[int]]
) -> None:
    (target,), stages = alive(server, TARGET), alive(server, STAGE)
    running = streams(server)
    stages[-1].send_signal(signal.SIGSTOP)
    target.kill()
    assert [stream.all_ids() for stream in running] == texts
    wait_until_gone([target, *stages])
    wait_until(lambda: len(alive(server, STAGE)) == len(stages), "a stage was not replaced")
    server.settled()


def test_streams_and_answers_continue_when_the_router_is_killed(server: SpectraServer, texts: list[list[int]]) -> None:
    pattern = job(1) | {"structured_outputs": {"regex": "[a-z ]{1500,}"}, "ignore_eos": False}
    spelled = server.token_ids(**pattern | {"speculative": {"enabled": False}})
    [router] = alive(server, ROUTER)
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(server.complete, return_token_ids=True, **job(1))
        constrained = StreamedCompletion(server, **pattern)
        running = streams(server)
        constrained.until(30)
        router.kill()
        ready_again(server, router)
        assert [stream.all_ids() for stream in (*running, constrained)] == [*texts, spelled]
        answer = whole.result().json()
    assert answer["choices"][0]["token_ids"] == texts[1]
    figures = answer["metrics"]["speculative_decoding"]
    # A step that is cut at the end may count an accepted node for its bonus token.
    assert 0 <= 1 + figures["num_spec_steps"] + figures["num_accepted_draft_tokens"] - N_TOKENS <= 1
    server.settled()


class Breakable(StreamedCompletion):
    """A stream whose connection may break."""

    def _read(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            super()._read()


def test_requests_of_a_killed_ingress_leave_nothing_and_can_be_repeated(
    server: SpectraServer, texts: list[list[int]]
) -> None:
    running = streams(server, Breakable)
    alive(server, INGRESS)[0].kill()
    for number, stream in enumerate(running):
        stream.join()
        assert stream.token_ids == texts[number][: len(stream.token_ids)]
        assert stream.ended_with != "data: [DONE]" or stream.token_ids == texts[number]
    server.settled()
    broken = [number for number in JOBS if running[number].ended_with != "data: [DONE]"]
    assert [server.token_ids(**job(number)) for number in broken] == [texts[number] for number in broken]
    wait_until(lambda: len(alive(server, INGRESS)) == 2)


@pytest.mark.matrix
@pytest.mark.parametrize("title", [STAGE, TARGET, ROUTER])
def test_a_stopped_process_is_found_and_replaced(server: SpectraServer, texts: list[list[int]], title: str) -> None:
    stopped = alive(server, title)[0]
    running = streams(server)
    stopped.send_signal(signal.SIGSTOP)
    try:
        assert [stream.all_ids() for stream in running] == texts
        if title == ROUTER:
            ready_again(server, stopped)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # Serve may have killed it
            stopped.send_signal(signal.SIGCONT)
    wait_until_gone([stopped])
    server.settled()
