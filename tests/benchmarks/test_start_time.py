"""The benchmark of a start names processes as people know them, and counts all that a process has started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.processes.start_time import ALL, name_of, taken_by

WORKS = "import time\nwhile time.process_time() < 0.6: pass\nprint(flush=True)\ninput()"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["ray::ServeReplica:spectra:Ingress", "", ""], "Ingress"),
        (["ray::StageActor"], "StageActor"),
        (["ray::ServeController.listen_for_change"], "ServeController"),
        (["/venv/bin/python", "-u", "/ray/dashboard/dashboard.py", "--host=127.0.0.1"], "dashboard.py"),
        (["/venv/bin/python", "-m", "app.cli", "serve"], "spectra serve"),
        (["/ray/gcs_server", "--log_dir=/tmp"], "gcs_server"),
    ],
)
def test_processes_are_named(command: list[str], name: str) -> None:
    assert name_of(command) == name


def test_what_a_child_took_is_counted() -> None:
    command = [sys.executable, "-c", WORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        taken = taken_by(os.getpid())
        seconds, memory = taken_by(child.pid)[ALL]
        child.communicate(b"\n")
    assert seconds >= 0.5
    assert memory > 1
    assert taken[ALL][0] >= seconds
    assert taken[ALL][1] > memory
