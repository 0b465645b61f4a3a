"""``spectra serve`` and ``spectra load`` as processes, for benchmarks that measure a server from outside."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from app.inputs.default_model import DEFAULT_MODEL, is_default
from benchmarks.support.program import Program

HOST = "127.0.0.1"
# Between those of replicas on a node (``app.serving.environment``) and those of outgoing connections, of which a killed
# server would lose its port.
PORTS = range(30_000, 31_600)


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
