"""A relay that ends TLS in front of a server that has none.

It also passes on clients without TLS: a Sentinel must reach its servers at the addresses that it gives to clients.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import trustme

from tests.support.redis_server import HOST

HANDSHAKE = b"\x16"  # the first byte of TLS


class TlsRelay:
    """Listens on 127.0.0.1 in a thread.

    Args:
        target: port on 127.0.0.1 to which bytes are passed on.
        authority: signs the certificate; None: a new one.
        names: hosts that the certificate is for.
    """

    def __init__(
        self, target: int, authority: trustme.CA | None = None, names: Sequence[str] = (HOST, "localhost")
    ) -> None:
        self._target = target
        self._authority = authority or trustme.CA()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*names).configure_cert(self._context)
        self._socket = socket.create_server((HOST, 0), backlog=100)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tls-relay", daemon=True)

    def write_ca(self, folder: Path) -> Path:
        """Write the authority's certificate as a PEM file."""
        path = folder / f"ca-{self.port}.pem"
        self._authority.cert_pem.write_to_path(str(path))
        return path

    def cut(self) -> None:
        """Close all connections; new ones are accepted."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.create_task(self._accept())
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # transports close
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
        pumps: list[asyncio.Task[None]] = []
        try:
            reader, writer = await self._meet(connection)
            writers.append(writer)
            upstream, down = await asyncio.open_connection(HOST, self._target)
            writers.append(down)
            pumps = [asyncio.create_task(_pump(reader, down)), asyncio.create_task(_pump(upstream, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:  # ssl.SSLError is one: the client does not trust us; or the server is gone
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            for writer in writers:
                writer.transport.abort()
            connection.close()

    async def _meet(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection.setblocking(False)
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        is_tls = connection.recv(1, socket.MSG_PEEK) == HANDSHAKE
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        context = self._context if is_tls else None
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
