"""``spectra serve`` and ``spectra load`` as processes, for benchmarks that measure a server from outside."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from app.inputs.default_model import DEFAULT_MODEL, is_default

HOST = "127.0.0.1"
# Between those of replicas on a node (``app.serving.environment``) and those of outgoing connections, of which a killed
# server would lose its port.
PORTS = range(30_000, 31_600)
STOP_TIMEOUT_S = 60


def free_port() -> int:
    """Return a port of ``PORTS`` on which no process listens, claimed until this process ends.

    The claim is an abstract socket of that name: two processes that look for a port at once get different ones.
    """
    while True:
        port = random.SystemRandom().choice(PORTS)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0spectra-serve-port-{port}")
        except OSError:
            claim.close()
            continue
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                claim.detach()  # open, and so bound, until the process ends
                return port
        claim.close()


class Program:
    """A command that runs in its own session within a ``with`` block: it prints a line when it is up, and ends when its
    stdin is closed.

    Args:
        name: for messages.
        command: to run.
        environment: of the process; None: the one of this process.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running command."""
        return self._started.pid

    @property
    def _started(self) -> subprocess.Popen[str]:
        assert self._process is not None, f"{self._name} has not been started"
        return self._process

    def is_up(self, line: str) -> bool:
        """Return whether this line of stdout says that the command is up."""
        return bool(line)

    def __enter__(self) -> Self:
        """Start the command and return once it is up.

        Raises:
            SystemExit: it ended before; the message holds the end of its stderr.
        """
        with tempfile.TemporaryFile("w+") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            try:
                if not any(map(self.is_up, iter(self._process.stdout.readline, ""))):
                    log.seek(0)
                    raise SystemExit(f"{self._name} did not start:\n{log.read()[-2000:]}")
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the command; after ``STOP_TIMEOUT_S`` seconds it is killed."""
        process = self._started
        self.end()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"{self._name} did not end within {STOP_TIMEOUT_S} s and is killed", file=sys.stderr)
            process.kill()
            process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()

    def end(self) -> None:
        """Tell the command to end."""
        assert self._started.stdin is not None
        self._started.stdin.close()


class ServerProcess(Program):
    """``spectra serve`` on this machine.

    Args:
        model: as ``--model`` takes it.
        flags: further command line.
    """

    def __init__(self, model: str, flags: Sequence[str]) -> None:
        self.model = DEFAULT_MODEL if is_default(model) else Path(model).name.removesuffix(".gguf")
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        command = [sys.executable, "-m", "app.cli", "serve", "--model", model, *flags, "--port", str(port)]
        super().__init__("the server", command)

    def __enter__(self) -> Self:
        """Return once the server takes requests."""
        print("Starting the server ...", file=sys.stderr, flush=True)
        return super().__enter__()

    def is_up(self, line: str) -> bool:
        """Whether the server says that it takes requests."""
        return line.startswith("Ready")

    def end(self) -> None:
        """Stop the server as Ctrl-C does."""
        self._started.terminate()


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
