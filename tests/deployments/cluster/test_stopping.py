"""Signals that reach every process of a server at once, as from systemd, ``timeout`` or a terminal; and a dead Ray."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.server_process import FLAGS, Server, Stream, running

pytestmark = pytest.mark.cluster

STOP_S = 25  # less than Serve waits for a controller that is not there, and many times what a stop takes


def stopped_in_good_order(server: Server, processes: list[psutil.Process]) -> None:
    assert server.process.wait(STOP_S) == 0
    assert psutil.wait_procs(processes, timeout=5)[1] == []
    assert list(server.folder.glob("spectra-*")) == []
    assert "Controller failed to shut down" not in server.log.read_text()
    assert "graceful_shutdown failed" not in server.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["control-group", "terminal"])
def test_a_signal_to_all_processes_of_a_server_lets_the_running_stream_end_and_leaves_nothing(
    tiny_checkpoint: Path, number: signal.Signals
) -> None:
    with running(tiny_checkpoint) as server:
        stream = Stream(server, max_tokens=300, ignore_eos=True, temperature=0.8, seed=4)
        stream.until(5)
        processes = server.processes()
        assert len(processes) > 8
        group = os.getpgid(server.process.pid)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if number == signal.SIGTERM or os.getpgid(process.pid) == group:  # a terminal signals the group only
                    process.send_signal(number)
        assert len(stream.all_ids()) == 300
        stopped_in_good_order(server, processes)


def test_streams_that_outlast_the_grace_period_end_with_an_error_event(tiny_checkpoint: Path) -> None:
    with running(tiny_checkpoint, (*FLAGS[:-1], "0.2")) as server:
        streams = [Stream(server, max_tokens=900, ignore_eos=True, seed=seed) for seed in (4, 5)]
        for stream in streams:
            stream.until(5)
        processes = server.processes()
        server.process.send_signal(signal.SIGINT)
        for stream in streams:
            stream.join()
            assert len(stream.token_ids) < 900
            assert [error["code"] for error in stream.errors] == ["target_lost"]
            assert "shutting down" in stream.errors[0]["message"]
            assert stream.ended_with.startswith('data: {"error"')
        stopped_in_good_order(server, processes)


def test_a_server_whose_ray_has_died_stops_soon_and_leaves_no_process(tiny_checkpoint: Path) -> None:
    with running(tiny_checkpoint) as server:
        processes = server.processes()
        server.process_of("gcs_server").kill()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(STOP_S)
        assert psutil.wait_procs(processes, timeout=5)[1] == []
