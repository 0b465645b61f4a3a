"""Channels on asyncio: routers and ingresses use them to stages and to each other."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Collection

from deployments.channels.addresses import HANDSHAKE_S, open_streams, parse, tune
from deployments.channels.channel import LENGTH, MAX_FRAME
from deployments.channels.handshake import ClientHandshake, Handshake, ServerHandshake, UnauthenticatedError
from deployments.channels.tls import tls_context
from engine.errors import TargetLostError


class AsyncChannel:
    """One authenticated connection; frames are those of ``Channel``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        # A second descriptor of the same connection: the socket objects that event loops expose cannot be tuned.
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as connection:
            tune(connection)

    @classmethod
    async def accept(
        cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, roles: Collection[str]
    ) -> AsyncChannel:
        """Authenticate a peer that connected; raises like ``Channel.accept``, and leaves the connection open."""
        try:
            channel = cls(reader, writer)
            async with asyncio.timeout(HANDSHAKE_S):
                await channel._shake_hands(ServerHandshake(secret, roles))
        except (OSError, EOFError, TimeoutError) as error:
            raise UnauthenticatedError(f"handshake broke off: {error}") from error
        return channel

    @classmethod
    async def connect(cls, address: str, secret: bytes, role: str) -> AsyncChannel:
        """Like ``Channel.connect``; raises TargetLostError when no process listens or the peer breaks off."""
        tls = None if parse(address)[0] == socket.AF_UNIX else tls_context(secret, False)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                channel = cls(*await open_streams(address, tls))
                try:
                    await channel._shake_hands(ClientHandshake(secret, role, address))
                except BaseException:
                    channel.close()
                    raise
        except ssl.SSLError as error:
            raise UnauthenticatedError(f"{address} does not know the secret of this channel: {error}") from error
        except (OSError, EOFError, TimeoutError) as error:
            raise TargetLostError(f"no process answers at {address}: {str(error) or 'too slow'}") from error
        return channel

    async def _shake_hands(self, handshake: Handshake) -> None:
        reply = handshake.opening
        while handshake.n_missing:
            self._writer.write(reply)
            reply = handshake.receive(await self._reader.read(handshake.n_missing))
        self._writer.write(reply)

    def send(self, payload: bytes | bytearray) -> None:
        """Send one frame; never waits or fails: a lost peer shows in ``receive``."""
        if not self._writer.is_closing():  # uvloop raises on a transport that the peer has closed
            self._writer.write(LENGTH.pack(len(payload)) + payload)

    async def receive(self) -> bytes:
        """The next frame; raises TargetLostError when the peer is gone."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > MAX_FRAME:
                raise TargetLostError(f"a frame of {length} bytes is longer than the limit of {MAX_FRAME}")
            return await self._reader.readexactly(length)
        except (OSError, EOFError) as error:
            raise TargetLostError(f"the channel broke: {error}") from error

    @property
    def n_unsent(self) -> int:
        """Bytes of sent frames in this process, because the peer does not read."""
        return self._writer.transport.get_write_buffer_size()

    def close(self) -> None:
        """Close at once, and drop the unsent bytes."""
        self._writer.transport.abort()
