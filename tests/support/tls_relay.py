"""A relay that ends TLS in front of a server that has none; a client that speaks plainly gets through as well.

The latter because a Sentinel must reach its servers under the addresses that it tells to others.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme

from tests.support.redis_server import HOST

HANDSHAKE = b"\x16"  # the first byte of TLS


class TlsRelay:
    """Listens on 127.0.0.1 with a certificate of its own authority, in a thread.

    Args:
        target: port on 127.0.0.1 to which bytes are passed on.
        authority: signs the certificate; a new one if there is none.
        names: hosts that the certificate is for.
    """

    def __init__(
        self, target: int, authority: trustme.CA | None = None, names: Sequence[str] = (HOST, "localhost")
    ) -> None:
        self.target = target
        self.authority = authority or trustme.CA()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(*names).configure_cert(self._context)
        self._socket = _listen()
        self.port: int = self._socket.getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tls-relay", daemon=True)

    def write_ca(self, folder: Path) -> Path:
        """The authority's certificate as a PEM file."""
        path = folder / f"ca-{self.port}.pem"
        self.authority.cert_pem.write_to_path(str(path))
        return path

    def cut(self) -> None:
        """Close all connections; new ones are accepted."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.create_task(self._accept())
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # closed transports say goodbye
        self._socket.close()
        self._loop.close()

    async def _accept(self) -> None:
        while True:
            connection, _ = await self._loop.sock_accept(self._socket)
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        writers: list[asyncio.StreamWriter] = []
        try:
            reader, writer = await self._meet(connection)
            writers.append(writer)
            upstream, down = await asyncio.open_connection(HOST, self.target)
            writers.append(down)
            pumps = [asyncio.create_task(_pump(reader, down)), asyncio.create_task(_pump(upstream, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:  # ssl.SSLError is one: the client does not trust us; or no process listens behind
            pass
        finally:
            for writer in writers:
                writer.transport.abort()
            connection.close()

    async def _meet(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        first = await _first_byte(self._loop, connection)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._context if first == HANDSHAKE else None
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)


def _listen() -> socket.socket:
    listening = socket.create_server((HOST, 0), backlog=100)
    listening.setblocking(False)
    return listening


async def _first_byte(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bytes:
    connection.setblocking(False)
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
