"""The commands of a stage's leader to its other ranks, over a link to each."""

from __future__ import annotations

import select
from collections.abc import Sequence
from multiprocessing import BufferTooShort
from multiprocessing.connection import Connection
from typing import Any, Protocol

import msgspec

from engine.stage.artefacts import AttentionRows, PackedRows, pack_rows, unpack_rows


class RankLink(Protocol):
    """A connection between the leader and another rank. Calls raise EOFError or OSError when the peer is lost."""

    def send(self, payload: bytes) -> None:
        """Send one frame."""

    def receive(self) -> bytes:
        """Return the next frame."""

    def send_all(self, parts: Sequence[memoryview]) -> None:
        """Send bytes outside any frame."""

    def receive_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with bytes outside any frame."""

    def set_timeout(self, seconds: float | None) -> None:
        """Limit how long a call waits for the peer."""

    def hangs_up(self, within: float) -> bool:
        """Wait up to ``within`` seconds until the peer is gone or this end is closed; returns whether that happened."""

    def close(self) -> None:
        """Close this end."""


class JoinCommand(msgspec.Struct, frozen=True, tag="join"):
    """Build a process group. The first command on a link; without it sums travel over the link."""

    file: str  # rendezvous, on the node of all ranks
    backend: str  # "nccl", or "gloo" in tests


class ResetCommand(msgspec.Struct, frozen=True, tag="reset"):
    """Remove every sequence."""


class WarmUpCommand(msgspec.Struct, frozen=True, tag="warm"):
    """Compile kernels and record steps."""


class AdmitCommand(msgspec.Struct, frozen=True, tag="admit"):
    """Admit a step and, if it has work, prepare it."""

    step: bytes


class ForwardCommand(msgspec.Struct, frozen=True, tag="forward"):
    """Run the prepared step on ``n_rows`` hidden states, which the leader broadcasts; 0: the stage embeds tokens."""

    n_rows: int


class HeadCommand(msgspec.Struct, frozen=True, tag="head"):
    """Multiply ``n_rows`` rows, which the leader broadcasts, by this rank's part of the head."""

    n_rows: int


class RowsCommand(msgspec.Struct, frozen=True, tag="rows"):
    """Return the attention rows of this rank's heads."""

    result: bytes  # a ``StepResult`` with tokens and accepted nodes


RankCommand = JoinCommand | ResetCommand | WarmUpCommand | AdmitCommand | ForwardCommand | HeadCommand | RowsCommand
_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(RankCommand)
_ROWS = msgspec.msgpack.Decoder(PackedRows)


def encode_command(command: RankCommand) -> bytes:
    """Return the frame of a command."""
    return _ENCODER.encode(command)


def decode_command(raw: bytes) -> RankCommand:
    """Decode a frame; raises msgspec.DecodeError if it is malformed."""
    command: RankCommand = _COMMANDS.decode(raw)
    return command


def encode_rows(rows: AttentionRows) -> bytes:
    """Return attention rows as a frame."""
    return _ENCODER.encode(pack_rows(rows))


def decode_rows(raw: bytes) -> AttentionRows:
    """Decode the frame of ``encode_rows``; raises msgspec.DecodeError if it is malformed."""
    return unpack_rows(_ROWS.decode(raw))


class PipeLink:
    """A ``RankLink`` between two processes of one machine that share a pipe; all bytes are frames of it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._timeout: float | None = None

    def send(self, payload: bytes) -> None:
        self._connection.send_bytes(payload)

    def receive(self) -> bytes:
        self._wait()
        return self._connection.recv_bytes()

    def send_all(self, parts: Sequence[memoryview]) -> None:
        for part in parts:
            self._connection.send_bytes(part)

    def receive_into(self, buffer: memoryview) -> None:
        self._wait()
        try:
            self._connection.recv_bytes_into(buffer)
        except BufferTooShort as error:  # the other end has left this exchange, and sends something else
            raise EOFError(f"the rank sent {len(error.args[0])} bytes instead of {len(buffer)}") from None

    def _wait(self) -> None:
        if self._timeout is not None and not self._connection.poll(self._timeout):
            raise TimeoutError(f"the rank has not answered for {self._timeout:g} s")

    def set_timeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def hangs_up(self, within: float) -> bool:
        poll = select.poll()
        try:
            poll.register(self._connection.fileno(), select.POLLRDHUP)
            return bool(poll.poll(1e3 * within))
        except (OSError, ValueError):  # closed here
            return True

    def close(self) -> None:
        self._connection.close()
