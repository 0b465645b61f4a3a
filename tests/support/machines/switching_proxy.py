"""TCP from one address to another, which is looked up for each new connection: what a Service does for clients of pods.

``python -m tests.support.machines.switching_proxy PORT FILE`` listens on all addresses; FILE holds ``HOST PORT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import httpx

from tests.support.machines.machine import Machine
from tests.support.machines.net import Net
from tests.support.machines.ray_machines import HTTP, PATIENCE_S
from tests.support.redis_server import wait_until

TARGET = "/tmp/target"
CHUNK = 1 << 16  # bytes


class SwitchingProxy:
    """Such a program on a machine of its own; connections that are open stay where they are.

    Args:
        net: it is plugged in there.
        logs: folder for what the program says.
        target: machine to which connections go at first, at the port of HTTP.
    """

    def __init__(self, net: Net, logs: Path, target: Machine) -> None:
        self._net = net
        self.machine = net.machine("service")
        self.switch(target)
        with (logs / "service.txt").open("a") as log:
            self.machine.launch(sys.executable, "-m", __name__, str(HTTP), TARGET, log=log)
        with self.client() as client:
            wait_until(lambda: _answers(client), "an answer through the proxy")

    def switch(self, target: Machine) -> None:
        """New connections go there from now on."""
        written = self.machine.path(f"{TARGET}.new")
        written.write_text(f"{target.address} {HTTP}")
        written.rename(self.machine.path(TARGET))

    def client(self) -> httpx.Client:
        """A client without connections; the caller closes it."""
        return self._net.client(f"http://{self.machine.host}:{HTTP}", timeout=PATIENCE_S)


def _answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/health").is_success
    return False


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, file: Path) -> None:
    """Carry one client's connection in both directions until both have ended."""
    host, port = file.read_text().split()
    with contextlib.closing(writer):
        try:
            from_target, to_target = await asyncio.open_connection(host, int(port))
        except OSError:
            return  # a client sees its connection end, as it would at a Service without endpoints
        with contextlib.closing(to_target):
            await asyncio.gather(_carry(reader, to_target), _carry(from_target, writer))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # the other side has gone
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def main(port: int, file: Path) -> None:
    """Serve until the process is told to end."""
    server = await asyncio.start_server(lambda reader, writer: forward(reader, writer, file), None, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
