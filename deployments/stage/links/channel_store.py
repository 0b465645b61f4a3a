"""The rendezvous of a process group over an authenticated channel.

``torch.distributed``'s own stores listen to whoever connects. Two ranks need none of that: what one sets, the other
gets, so a key is a frame on the channel the two stages share already. Values are bytes that gloo or NCCL made for
themselves; they come from a peer that knows the pipeline's secret.
"""

from __future__ import annotations

import time
from datetime import timedelta

import msgspec
from torch._C._distributed_c10d import Store  # torch.distributed has it too, but untyped

from deployments.transport.channel import Channel


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A key that was set; the empty one says that no more will be."""

    key: str
    value: bytes = b""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Entry)


class ChannelStore(Store):
    """A store of exactly two ranks.

    Args:
        channel: to the other; nothing else may use it until ``finish`` has returned.
        seconds: for all of the rendezvous.
    """

    def __init__(self, channel: Channel, seconds: float) -> None:
        super().__init__()
        self._channel = channel
        self._deadline = time.monotonic() + seconds
        self._known: dict[str, bytes] = {}
        self._finished = False

    def set(self, key: str, value: str | bytes) -> None:
        """Remember a value and tell the other rank; after ``finish`` nobody is told."""
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
        """Until all are set; the store's own deadline holds. Raises like ``get``."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all are known here by now."""
        return all(key in self._known for key in keys)

    def finish(self) -> None:
        """Both ranks are done: from here on the channel carries frames again. Raises like ``get``."""
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
            raise TimeoutError("the neighbour takes too long to build a link")
        self._channel.set_timeout(left)
        try:
            entry = _DECODER.decode(self._channel.receive())
        except msgspec.DecodeError as error:
            raise EOFError(f"the neighbour sent what is no key: {error}") from error
        self._known[entry.key] = entry.value
