"""How the server of this folder refuses a second one on its port, and stops."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.support.server_process import SpectraServer, check_a_signal_to_all_processes_stops_the_server, spectra

pytestmark = pytest.mark.cluster


def test_a_second_server_on_the_port_is_one_clear_line_and_starts_no_ray(server: SpectraServer) -> None:
    before = sorted(server.folder.rglob("session_*"))
    command = [spectra(), "serve", "--model", str(server.checkpoint), "--port", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(server.folder)})
    assert (done.returncode, done.stdout) == (2, "")
    taken = f"spectra: port {server.port} on 127.0.0.1 is taken; choose another with --port"
    assert done.stderr.splitlines()[-1] == taken
    assert sorted(server.folder.rglob("session_*")) == before


def test_sigterm_to_all_processes_lets_the_running_stream_end_and_leaves_none(server: SpectraServer) -> None:
    check_a_signal_to_all_processes_stops_the_server(server, signal.SIGTERM)
