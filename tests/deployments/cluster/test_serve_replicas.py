"""Two pipelines behind one real server: the same texts, no pause when one is lost; the last test stops it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.server_process import (
    FLAGS,
    READY_S,
    Server,
    Stream,
    check_a_signal_to_all_processes_stops_the_server,
    running,
)

pytestmark = pytest.mark.cluster

MORE = ("--replicas", "2", "--speculator-actors", "2", "--draft-timeout", "0.5")


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    with running(tiny_checkpoint, (*FLAGS, *MORE)) as started:
        yield started


def actors(server: Server, kind: str) -> list[psutil.Process]:
    return [process for process in server.processes() if f"ray::{kind}" in " ".join(process.cmdline())]


def stages(server: Server) -> list[psutil.Process]:
    return actors(server, "StageActor")


def both_up(server: Server) -> dict[str, Any]:
    deadline = time.monotonic() + READY_S
    while (health := server.health()).get("lanes_up") != 2:
        assert time.monotonic() < deadline, "the second lane does not come up"
        time.sleep(0.1)
    return health


def test_health_tells_of_both_lanes(server: Server) -> None:
    health = both_up(server)
    assert (health["status"], health["lanes"]) == ("ok", 2)
    assert health["blocks"] == health["Target.free_blocks"] + health["Target-2.free_blocks"]
    assert len(stages(server)) == 2


def test_both_lanes_write_the_same_text(server: Server) -> None:
    both_up(server)
    fields: dict[str, Any] = {"max_tokens": 400, "temperature": 0.8, "seed": 5, "ignore_eos": True}
    streams = [Stream(server, **fields) for _ in range(4)]
    for stream in streams:
        stream.until(20)
    health = server.health()
    assert (health["Target.running"], health["Target-2.running"]) == (2, 2)
    texts = [stream.all_ids() for stream in streams]
    assert texts == [server.token_ids(**fields, speculative={"enabled": False})] * 4
    server.settled()


def test_new_requests_are_served_while_a_lost_stage_is_replaced(server: Server) -> None:
    both_up(server)
    fields: dict[str, Any] = {"max_tokens": 1500, "temperature": 0.8, "seed": 8, "ignore_eos": True}
    wanted = server.token_ids(**fields)
    streams = [Stream(server, **fields) for _ in range(4)]
    for stream in streams:
        stream.until(50)
    stages(server)[0].kill()
    while server.health()["lanes_up"] == 2:
        time.sleep(0.01)
    served = 0
    while (health := server.health())["lanes_up"] < 2:
        assert health["status"] == "ok"  # one lane is enough to be ready
        assert len(server.token_ids(max_tokens=5, ignore_eos=True)) == 5
        served += 1
    assert served > 0
    assert [stream.all_ids() for stream in streams] == [wanted] * 4
    assert server.settled()["pipelines_lost"] >= 1


@pytest.mark.parametrize("signals", [(signal.SIGSTOP, signal.SIGCONT), (signal.SIGKILL,)], ids=["hangs", "dies"])
def test_speculators_that_hang_or_die_cost_drafts_and_nothing_else(
    signals: tuple[signal.Signals, ...], server: Server
) -> None:
    both_up(server)
    fields: dict[str, Any] = {"max_tokens": 400, "temperature": 0.8, "seed": 9, "ignore_eos": True}
    wanted = server.token_ids(**fields, speculative={"enabled": False})
    for _ in range(2):  # more than once
        lost = server.health()["pipelines_lost"]
        streams = [Stream(server, **fields, speculative={"method": "pld"}) for _ in range(4)]
        for stream in streams:
            stream.until(50)
        speculators = actors(server, "SpeculatorActor")
        for speculator in speculators:
            speculator.send_signal(signals[0])
        assert [stream.all_ids() for stream in streams] == [wanted] * 4
        for speculator in speculators if len(signals) > 1 else ():
            speculator.send_signal(signals[1])
        assert server.settled()["pipelines_lost"] == lost
    figures: dict[str, Any] = {"by_source": {}}
    deadline = time.monotonic() + READY_S
    while not figures["by_source"]:  # and they are back
        assert time.monotonic() < deadline, "nobody drafts any more"
        answer = server.complete(max_tokens=60, logit_bias={"9": 100}, speculative={"method": "pld"}).json()
        figures = answer["metrics"]["speculative_decoding"]


def test_metrics_sum_over_lanes_and_name_every_stage(server: Server) -> None:
    both_up(server)
    text = server.http.get("/metrics").text
    assert 'spectra:pipelines_up{model_name="tiny"} 2.0' in text
    busy = [line for line in text.splitlines() if line.startswith("spectra:stage_busy_seconds_total")]
    assert {'lane="Target"', 'lane="Target-2"'} == {
        f'lane="{line.split("lane=")[1].split(chr(34))[1]}"' for line in busy
    }


def test_a_signal_from_a_terminal_lets_the_running_stream_end_and_leaves_nothing(server: Server) -> None:
    check_a_signal_to_all_processes_stops_the_server(server, signal.SIGINT)
