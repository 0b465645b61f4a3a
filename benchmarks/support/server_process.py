"""``spectra serve`` and ``spectra load`` as processes, for benchmarks that measure a server from outside."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
PORTS = range(22000, 30000)  # below those of outgoing connections: a killed server's port stays free


def free_port() -> int:
    """A port of ``PORTS`` on which no process listens now."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return port


class ServerProcess:
    """``spectra serve`` in a process and session of its own, within a ``with`` block.

    Args:
        model: checkpoint directory, or ``demo``.
        flags: further command line.
    """

    def __init__(self, model: str, flags: Sequence[str]) -> None:
        self.model = Path(model).name
        self.url = f"http://{HOST}:{free_port()}"
        self._command = [sys.executable, "-m", "app.cli", "serve", "--model", model, *flags]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running command."""
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def __enter__(self) -> Self:
        """Return once the server takes requests.

        Raises:
            SystemExit: the server ended before that; the message holds the end of what it wrote.
        """
        print("Starting the server ...", file=sys.stderr, flush=True)
        command = [*self._command, "--port", self.url.rpartition(":")[2]]
        with tempfile.TemporaryFile("w+") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
            assert self._process.stdout is not None
            try:
                if not any(line.startswith("Ready") for line in iter(self._process.stdout.readline, "")):
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read()[-2000:]}")
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server as Ctrl-C does; a server that is still there after a minute is killed."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            print("the server did not stop within 60 s and is killed", file=sys.stderr)
            self._process.kill()


async def load(url: str, *flags: str | float | Path) -> dict[str, Any]:
    """The JSON document of ``spectra load --url URL FLAGS``.

    Raises:
        SystemExit: the command printed no document.
    """
    command = [sys.executable, "-m", "app.cli", "load", "--url", url, *map(str, flags)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    last = output.decode().strip().rpartition("\n")[2]
    if not last.startswith("{"):
        raise SystemExit(f"no result from {' '.join(command)}")
    document: dict[str, Any] = json.loads(last)
    return document
