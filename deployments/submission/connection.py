"""What both ends of the connection between an ingress and a router share: frames, heartbeats, the end."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from deployments.channels.async_channel import AsyncChannel
from deployments.submission.protocol import Command, Event, Heartbeat, encode, encode_message

logger = logging.getLogger(__name__)


class PeerConnection:
    """One end of the connection; all messages of one turn of the event loop leave in one frame.

    Args:
        channel: authenticated.
        beat: seconds between heartbeats.
        peer: name of the other end in logs.
    """

    def __init__(self, channel: AsyncChannel, beat: float, peer: str) -> None:
        self.is_open = True
        self._channel = channel
        self._heartbeat = Heartbeat(beat)
        self._peer = peer
        self._outbox: list[msgspec.Raw] = []  # encoded messages of the next frame
        self._n_bytes = 0  # of the outbox

    def close(self) -> None:
        """Drop the connection and the messages that have not been sent."""
        self.is_open = False
        self._outbox, self._n_bytes = [], 0
        self._channel.close()

    def _send(self, message: Command | Event) -> None:
        """Queue a message for the frame that leaves at the end of this turn of the event loop.

        Raises:
            EncodeError: the message cannot be encoded; others are not affected.
        """
        if not self.is_open:
            return
        encoded = encode_message(message)
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(encoded)
        self._n_bytes += len(encoded)

    def _flush(self) -> None:
        if self._outbox:
            messages, self._outbox, self._n_bytes = self._outbox, [], 0
            self._channel.send(encode(messages))

    async def _receive(self) -> bytes:
        """The next frame; raises TargetLostError when the peer has disconnected."""
        frame = await self._channel.receive()
        self._heartbeat.heard()
        return frame

    async def _watch(self) -> None:
        """Close the connection once the peer falls silent."""
        while await self._heartbeat.beat():
            self._on_beat()
        logger.warning("the connection to the %s is closed: no frame arrived for too long", self._peer)
        self.close()

    def _on_beat(self) -> None:
        """Called at every beat of an open connection."""
