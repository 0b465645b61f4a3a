"""``spectra serve`` in a process and session of its own, started and stopped; not what it is asked, nor when."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
PORTS = range(22000, 30000)  # below those of outgoing connections: a killed server's port stays free


def free_port() -> int:
    """A port of ``PORTS`` that nobody listens on now."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return port


class ServerProcess:
    """``spectra serve`` in a process and session of its own; its messages go to ``log``."""

    def __init__(self, model: str, flags: Sequence[str], log: Path) -> None:
        self.model = Path(model).name
        self.url = f"http://{HOST}:{free_port()}"
        self._command = [sys.executable, "-m", "app.cli", "serve", "--model", model, *flags]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the running command."""
        assert self._process is not None, "the server has not been started"
        return self._process.pid

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
