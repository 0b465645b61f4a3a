"""Attention rows of heads that are not on the last stage: requested once the last stage knows which nodes it accepted.

Only the last stage knows which row of a tree belongs to the last accepted node, and the rows of all nodes would be
megabytes a step. So a stage keeps the data to compute its rows from, and writes its address on the frame. The last
stage requests the rows over a separate connection, while the loop of the stage serves the next step.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from deployments.channels.channel import Channel
from deployments.channels.handshake import ROWS, UnauthenticatedError
from engine.errors import RankLostError
from engine.stage.artefacts import (
    AttentionRows,
    KeptCaptures,
    PackedRows,
    attach_attention,
    pack_rows,
    request_for_rows,
    unpack_rows,
)
from engine.step import WorkResult, decode_result

logger = logging.getLogger(__name__)


class PeerLostError(EOFError):
    """A stage that keeps rows is lost: the pipeline is broken."""


class _AttentionRows(msgspec.Struct, frozen=True, array_like=True):
    """An answer."""

    rows: PackedRows = []
    error: str = ""  # why they could not be computed


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_AttentionRows)


class RowKeeper(KeptCaptures):
    """The answering side, one per stage: the loop calls ``keep`` and ``clear``, a thread calls ``serve``."""

    def serve(self, channel: Channel) -> None:
        """Answer one peer until it disconnects."""
        try:
            while True:
                channel.send(_ENCODER.encode(self._answer(channel.receive())))
        except (EOFError, OSError, msgspec.DecodeError) as error:
            logger.info("the peer that requests attention rows is gone: %s", error)
        finally:
            channel.close()

    def _answer(self, raw: bytes) -> _AttentionRows:
        asked = decode_result(raw)
        try:
            rows = self.take_rows(asked)
        except RankLostError:  # the connection ends, and with it the pipeline's: requests are not at fault
            raise
        except Exception as failure:  # of any kind: the last stage waits for an answer
            logger.exception("attention rows of step %d failed", asked.step_id)
            return _AttentionRows(error=f"{type(failure).__name__}: {failure}")
        if rows is None:
            return _AttentionRows(error=f"step {asked.step_id} is not known to this stage")
        return _AttentionRows(pack_rows(rows))


class RowRequester:
    """The requesting side: on the last stage, used by its loop only."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._peers: dict[str, Channel] = {}

    def attach(
        self, step_id: int, results: Sequence[WorkResult], own: AttentionRows, addresses: Sequence[str]
    ) -> list[WorkResult]:
        """The step's results with the attention rows of this stage and of those at ``addresses``.

        Raises:
            PeerLostError: one of these stages is lost.
            RuntimeError: one of these stages could not compute its rows.
        """
        rows = dict(own)
        if addresses and any(result.tokens for result in results):
            rows |= self._request(request_for_rows(step_id, results), addresses)
        return [attach_attention(result, rows) for result in results] if rows else list(results)

    def close(self) -> None:
        """Drop all connections."""
        for channel in self._peers.values():
            channel.close()
        self._peers.clear()

    def _request(self, message: bytes, addresses: Sequence[str]) -> AttentionRows:
        rows: AttentionRows = {}
        try:
            for address in addresses:
                if address not in self._peers:
                    self._peers[address] = Channel.connect(address, self._secret, ROWS)
                self._peers[address].send(message)
            answers = [_DECODER.decode(self._peers[address].receive()) for address in addresses]
        except (EOFError, OSError, UnauthenticatedError, msgspec.DecodeError) as error:
            raise PeerLostError(f"a stage that keeps attention rows is lost: {error}") from error
        for answer in answers:
            if answer.error:
                raise RuntimeError(f"attention rows of an earlier stage: {answer.error}")
            rows |= unpack_rows(answer.rows)
        return rows
