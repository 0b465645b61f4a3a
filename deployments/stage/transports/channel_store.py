"""The rendezvous of a process group over an authenticated channel.

The stores of ``torch.distributed`` accept any peer that connects. Two ranks need no such server: every key that one
rank sets is a frame to the other, on the authenticated channel of the two stages. Gloo and NCCL write the values.
"""

from __future__ import annotations

import time
from datetime import timedelta

import msgspec
from torch._C._distributed_c10d import Store  # torch.distributed has it too, but untyped

from deployments.channels.channel import Channel


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A key that was set; the empty key ends the rendezvous."""

    key: str
    value: bytes = b""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Entry)


class ChannelStore(Store):
    """A store of exactly two ranks.

    Args:
        channel: to the other rank; reserved for the store until ``finish`` has returned.
        seconds: limit for the whole rendezvous.
    """

    def __init__(self, channel: Channel, seconds: float) -> None:
        super().__init__()
        self._channel = channel
        self._deadline = time.monotonic() + seconds
        self._known: dict[str, bytes] = {}
        self._finished = False

    def set(self, key: str, value: str | bytes) -> None:
        """Remember a value and send it to the other rank; after ``finish`` it stays here."""
        self._known[key] = value.encode() if isinstance(value, str) else value
        if not self._finished:
            self._channel.send(_ENCODER.encode(_Entry(key, self._known[key])))

    def get(self, key: str) -> bytes:
        """The value, as soon as either rank has set it.

        Raises:
            TimeoutError, OSError, EOFError: the other rank is too slow, or gone.
        """
        while key not in self._known:
            self._take()
        return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all are set, by the store's own deadline, not ``timeout``; raises as ``get``."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all are known to this rank by now."""
        return all(key in self._known for key in keys)

    def finish(self) -> None:
        """Wait until both ranks are done, and return the channel to frames; raises as ``get``."""
        self._channel.send(_ENCODER.encode(_Entry("")))
        while "" not in self._known:
            self._take()
        self._finished = True
        self._channel.set_timeout(None)

    def _take(self) -> None:
        if self._finished:
            raise EOFError("the rendezvous is over")
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the neighbour took too long to build a transport")
        self._channel.set_timeout(left)
        try:
            entry = _DECODER.decode(self._channel.receive())
        except msgspec.DecodeError as error:
            raise EOFError(f"the neighbour sent a malformed key: {error}") from error
        self._known[entry.key] = entry.value
