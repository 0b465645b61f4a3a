"""Sessions of live requests: their lanes, the mailboxes that their streams read, and times for metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from deployments.router.lane import Lane
from deployments.router.metrics import RouterMetrics
from engine.errors import SpectraError
from engine.events import StepEvent
from engine.scheduling.sequence import Sequence


@dataclass(slots=True, eq=False)
class Session:
    """A live request."""

    sequence: Sequence
    lane: Lane  # changes when the sequence moves
    mailbox: asyncio.Queue[StepEvent | SpectraError] = field(default_factory=asyncio.Queue)  # read by the stream
    last_event: float = field(default_factory=time.perf_counter)  # seconds
    n_events: int = 0
    is_over: bool = False  # the last event is in the mailbox
    is_resumed: bool = False  # another router emitted the first tokens


class Sessions:
    """Sessions of all live requests, by ``Sequence.seq``."""

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics
        self._live: dict[int, Session] = {}

    def __len__(self) -> int:
        """Number of open streams."""
        return len(self._live)

    def open(self, sequence: Sequence, lane: Lane) -> Session:
        """Open the session of an admitted request."""
        session = self._live[sequence.seq] = Session(sequence, lane, is_resumed=sequence.n_output > 0)
        return session

    def lane_of(self, sequence: Sequence) -> Lane | None:
        """The lane of a sequence; None once its stream is closed."""
        session = self._live.get(sequence.seq)
        return None if session is None else session.lane

    def move(self, sequence: Sequence, lane: Lane) -> None:
        """Record that a sequence is in another lane now."""
        session = self._live.get(sequence.seq)
        if session is not None:
            session.lane = lane

    def close(self, session: Session) -> None:
        """Remove the session of a stream that has ended, failed or been cancelled."""
        del self._live[session.sequence.seq]
        if not session.is_over:
            self._metrics.engines[session.lane.target.name].count_abort()

    def end_rests(self, seqs: Iterable[int]) -> None:
        """Let speculators draft again for sequences, wherever they are, from their next answers on."""
        for seq in seqs:
            session = self._live.get(seq)
            if session is not None:
                session.sequence.rests = False

    def deliver(self, events: Iterable[tuple[Sequence, StepEvent]]) -> None:
        """Put a step's events into the mailboxes."""
        now = time.perf_counter()
        for sequence, event in events:
            session = self._live.get(sequence.seq)
            if session is None:
                continue
            n_prompt = sequence.n_prompt if session.n_events == 0 and not session.is_resumed else 0
            engine = self._metrics.engines[session.lane.target.name]
            engine.count_event(event, now - session.last_event, n_prompt)
            session.last_event = now
            session.n_events += 1
            if event.finish_reason is not None:
                session.is_over = True
                if event.stats is not None:
                    engine.count_end(sequence, event.finish_reason, event.stats)
            session.mailbox.put_nowait(event)

    def fail(self, sequence: Sequence, error: SpectraError) -> None:
        """Let the stream of a sequence raise ``error``."""
        session = self._live.get(sequence.seq)
        if session is not None:
            session.mailbox.put_nowait(error)

    def fail_all(self, error: SpectraError) -> None:
        """Let every stream raise ``error``."""
        for session in self._live.values():
            session.mailbox.put_nowait(error)
