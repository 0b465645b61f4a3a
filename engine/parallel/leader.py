"""The leader of a stage's tensor-parallel ranks: a stage to its loop, which drives the other ranks over links."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from engine.device import is_host
from engine.errors import RankLostError
from engine.model.exchange import RankExchange
from engine.parallel.commands import (
    AdmitCommand,
    ForwardCommand,
    JoinCommand,
    RankCommand,
    RankLink,
    ResetCommand,
    RowsCommand,
    WarmUpCommand,
    decode_rows,
    encode_command,
)
from engine.parallel.exchanges import GroupExchange, StarExchange
from engine.parallel.follower import end_exchange
from engine.stage.artefacts import AttentionRows, Captured, request_for_rows
from engine.stage.base import Activations, Computing
from engine.stage.stage import Stage
from engine.step import Step, WorkResult, encode

ANSWER_S = 60.0  # seconds that the host waits for another rank


class ParallelStage:
    """Implements ``engine.stage.base.StageLike`` for all ranks of a stage.

    Methods that need the other ranks raise RankLostError, and drop all links, when one is lost or this rank fails in
    the middle of an exchange. ``connect`` then begins with empty ranks, whose weights stay loaded.

    Args:
        stage: of rank 0.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._links: Sequence[RankLink] = ()
        self._exchange: RankExchange | None = None
        self._lock = threading.Lock()  # another thread requests attention rows
        self._with_heads: set[int] = set()  # sequences that need attention rows of this stage
        self._step_id, self._asks_rows = -1, False  # of the current step; whether it has such sequences
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of a process group's rendezvous

    @property
    def is_connected(self) -> bool:
        return self._exchange is not None

    def connect(self, links: Sequence[RankLink], backend: str = "") -> None:
        """Connect to ranks 1, 2, ..; all of them start empty.

        Args:
            links: one to each.
            backend: of a process group; "": "nccl" on GPUs, and none on a CPU, where sums travel over the links.

        Raises:
            RankLostError: a rank is gone.
        """
        ranks, backend = self._stage.ranks, backend or ("" if is_host(self._stage.device) else "nccl")
        self.disconnect()
        end_exchange(self._stage)
        self._links = links
        for link in links:
            link.set_timeout(ANSWER_S)
        with self._guarded():
            self._exchange = StarExchange(ranks.share, links) if not backend else self._join(backend)
            ranks.exchange = self._exchange
            if self._stage.has_executor:
                self._send(WarmUpCommand())
                self._stage.warm_up()

    def _join(self, backend: str) -> GroupExchange:
        self._folder = tempfile.TemporaryDirectory(prefix="spectra-ranks-")  # of this user alone
        file = f"{self._folder.name}/store"
        self._send(JoinCommand(file, backend))
        return GroupExchange(self._stage.ranks.share, self._links, self._stage.device, backend, file)

    def disconnect(self) -> None:
        """Drop all links; the ranks stay loaded. Any thread may call it."""
        exchange, self._exchange = self._exchange, None
        for link in self._links:
            link.close()
        if exchange is not None:
            exchange.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _send(self, command: RankCommand) -> None:
        raw = encode_command(command)
        for link in self._links:
            link.send(raw)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Run the block alone. Any error in it leaves ranks in the middle of an exchange: all links are dropped."""
        with self._lock:
            try:
                yield
                if self._exchange is None or self._exchange.is_lost:
                    raise EOFError("a link was closed")
            except (EOFError, OSError) as error:
                self.disconnect()
                raise RankLostError(f"a rank of this stage is lost: {str(error) or 'its process ended'}") from error
            except BaseException:
                self.disconnect()
                raise

    # -- StageLike -----------------------------------------------------------------------------------------------

    @property
    def n_sequences(self) -> int:
        """See ``StageLike.n_sequences``."""
        return self._stage.n_sequences

    def reset(self) -> None:
        """See ``StageLike.reset``."""
        self._stage.reset()
        self._with_heads.clear()
        with self._guarded():
            self._send(ResetCommand())

    def request_ids(self, step: Step) -> list[str]:
        """See ``StageLike.request_ids``."""
        return self._stage.request_ids(step)

    def outline(self, step: Step) -> torch.Tensor | None:
        """See ``StageLike.outline``."""
        return self._stage.outline(step)

    def admit(self, step: Step) -> None:
        """See ``StageLike.admit``."""
        with self._guarded():
            self._send(AdmitCommand(encode(step)))
        self._with_heads -= {*step.ends}
        layers = self._stage.layers.numbers
        self._with_heads |= {start.seq for start in step.starts if any(one in layers for one, _ in start.needs.heads)}
        self._stage.admit(step)

    def prepare(self, step: Step) -> None:
        """See ``StageLike.prepare``."""
        self._stage.prepare(step)

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        """See ``StageLike.forward``."""
        self._step_id, self._asks_rows = step.step_id, any(work.seq in self._with_heads for work in step.work)
        with self._guarded():
            self._send(ForwardCommand(0 if incoming is None else incoming.hidden.shape[1]))
            if incoming is not None:
                self._stage.ranks.connected.broadcast(incoming.hidden[0].contiguous())
            return self._stage.forward(step, incoming)

    def computing(self) -> Computing | None:
        """See ``StageLike.computing``."""
        computing, exchange = self._stage.computing(), self._stage.ranks.connected
        return None if computing is None else _RankComputing(computing, exchange)

    def verify(self, activations: Activations) -> list[WorkResult]:
        """See ``StageLike.verify``."""
        with self._guarded():
            return self._stage.verify(activations)

    def attention(self, results: Sequence[WorkResult]) -> AttentionRows:
        """See ``StageLike.attention``."""
        captured = self.captured()
        return {} if captured is None else captured.rows(results)

    def captured(self) -> Captured | None:
        """See ``StageLike.captured``."""
        return _RankCaptures(self, self._stage.captured(), self._step_id) if self._asks_rows else None

    def request_rows(self, step_id: int, results: Sequence[WorkResult]) -> AttentionRows:
        """Return the attention rows of the other ranks' heads; any thread may call it."""
        rows: AttentionRows = {}
        with self._guarded():
            self._send(RowsCommand(request_for_rows(step_id, results)))
            for link in self._links:
                rows |= decode_rows(link.receive())
        return rows


@dataclass(frozen=True, slots=True)
class _RankComputing:
    """Implements ``Computing``: activations of a step in which a rank was lost are garbage, and are not passed on."""

    computing: Computing
    exchange: RankExchange

    def wait(self) -> float:
        """See ``Computing.wait``; raises RankLostError if the exchanges of the step were aborted."""
        seconds = self.computing.wait()
        if self.exchange.is_lost:
            raise RankLostError("a rank of this stage is lost")
        return seconds


@dataclass(frozen=True, slots=True)
class _RankCaptures:
    """The captures of all ranks. Implements ``engine.stage.artefacts.Captured``."""

    stage: ParallelStage
    own: Captured | None
    step_id: int

    def rows(self, results: Sequence[WorkResult]) -> AttentionRows:
        """See ``Captured.rows``."""
        own = {} if self.own is None else self.own.rows(results)
        return own | self.stage.request_rows(self.step_id, results)
