"""The inbox of a stage: frames of its upstream, received while the loop computes.

Small frames wait in the socket's own buffer, and the loop reads them itself: to be woken by another thread would take
longer. Once the upstream sends large frames, a thread receives them, a few frames ahead of the loop.
"""

from __future__ import annotations

import queue
import threading
from typing import NamedTuple, Protocol

import msgspec

from deployments.pipeline.frames import StageFrame, activations_of, decode_frame
from deployments.stage.links.base import Link
from deployments.stage.links.sockets import AT_ONCE, SocketLink
from deployments.transport.channel import Channel
from engine.stage.base import Activations

READ_AHEAD = 2  # frames


class Arrived(NamedTuple):
    """A frame and the activations that followed it."""

    frame: StageFrame
    activations: Activations | None


class Inbox(Protocol):
    """Frames of one upstream, in order, for one thread."""

    def take(self) -> Arrived:
        """The next frame; raises EOFError or OSError when the upstream is lost or sent a malformed frame."""

    def close(self) -> None:
        """Drop the connection."""


class RouterInbox:
    """Frames of a router, which have no tensors, straight from the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def take(self) -> Arrived:
        """As ``Inbox.take``."""
        frame = _decoded(self._channel.receive())
        if frame.tensors:
            raise EOFError("malformed frame: a router announced tensors")
        return Arrived(frame, None)

    def close(self) -> None:
        """As ``Inbox.close``."""
        self._channel.close()


class StageInbox:
    """Frames of another stage, with tensors; a thread reads ahead: on a socket link from the first large frame on, on
    other links from the start."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._arrived: queue.SimpleQueue[Arrived | Exception] = queue.SimpleQueue()
        self._room = threading.Semaphore(READ_AHEAD)
        self._closed = False
        self._is_ahead = False
        if link.kind != SocketLink.kind:
            self._read_ahead()

    def _read_ahead(self) -> None:
        self._is_ahead = True
        threading.Thread(target=self._read, name="stage-read", daemon=True).start()

    def take(self) -> Arrived:
        """As ``Inbox.take``."""
        if not self._is_ahead:
            arrived = self._next()
            if sum(header.n_bytes for header in arrived.frame.tensors) > AT_ONCE:
                self._read_ahead()
            return arrived
        return self._taken()

    def _taken(self) -> Arrived:
        arrived = self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        self._room.release()
        return arrived

    def close(self) -> None:
        """As ``Inbox.close``; the thread ends by itself."""
        self._closed = True
        self._link.close()
        self._room.release()

    def _read(self) -> None:
        while True:
            self._room.acquire()
            if self._closed:
                return
            try:
                arrived: Arrived | Exception = self._next()
            except Exception as error:  # of any kind: ``take`` must raise it
                arrived = error
            self._arrived.put(arrived)
            if isinstance(arrived, Exception):
                return

    def _next(self) -> Arrived:
        frame = _decoded(self._link.header())
        return Arrived(frame, activations_of(self._link.tensors(frame.tensors), frame.is_fused))


def _decoded(raw: bytes) -> StageFrame:
    try:
        return decode_frame(raw)
    except msgspec.DecodeError as error:
        raise EOFError(f"malformed frame: {error}") from error
