"""One method's run on one engine: a constant number of streams, each of which writes one text after the other."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.never_slower.cells import CellRecord
from benchmarks.never_slower.engines import ClockedEngine, VirtualEngine
from benchmarks.support.recording import TextJob
from engine.events import StepEvent
from engine.request import Request

Assign = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class StreamWorkload:
    """The texts of a run: ``n_measured`` from ``jobs[first]`` on, and then fillers, from the beginning again at the end
    of ``jobs``."""

    jobs: Sequence[TextJob]
    first: int
    n_measured: int
    max_nodes: int


@dataclass(slots=True)
class _RunningText:
    """A text that is being written."""

    submitted: float
    first_s: float = 0.0  # from its submission to its first token
    seconds: float = 0.0  # from its submission to its last token; 0: it is not complete
    tokens: list[int] = field(default_factory=list)
    forwards: int = -1  # the first token comes from the prefill

    def add(self, event: StepEvent, now: float) -> None:
        if not self.tokens:
            self.first_s = now - self.submitted
        self.forwards += 1
        self.tokens += event.token_ids
        if event.finish_reason is not None:
            self.seconds = now - self.submitted


class MethodRun:
    """One method's run over a turn of a cell.

    A stream whose text is complete submits the next prompt at once, and fillers follow the measured texts. So all
    measured texts are written in a full batch, as on a loaded server.

    Args:
        streams: that decode at the same time.
        method: of speculation; ``METHOD@NODES`` replaces the default number of nodes.
        engine: fresh; its pool may know earlier requests.
        workload: the texts.
        assign: called with the sequence and the number in ``jobs`` of every text before its first step.
    """

    def __init__(
        self,
        streams: int,
        method: str,
        engine: ClockedEngine | VirtualEngine,
        workload: StreamWorkload,
        assign: Assign = lambda seq, number: None,
    ) -> None:
        self.method = method
        self._engine, self._workload, self._assign = engine, workload, assign
        self._method, _, nodes = method.partition("@")
        self._max_nodes = int(nodes or workload.max_nodes)
        self._running: dict[int, _RunningText] = {}
        self._measured: list[_RunningText] = []
        self._n_submitted = self._n_complete = 0
        for _ in range(streams):
            self._submit()

    @property
    def is_done(self) -> bool:
        """Whether all measured texts are complete."""
        return self._n_complete == self._workload.n_measured

    @property
    def progress(self) -> float:
        """Tokens of the measured texts that are written."""
        return float(sum(len(one.tokens) for one in self._measured))

    @property
    def texts(self) -> list[tuple[int, ...]]:
        """The measured texts in order."""
        return [tuple(one.tokens) for one in self._measured]

    def advance(self, seconds: float) -> None:
        """Continue for ``seconds`` of this process."""
        began = time.process_time()
        while not self.is_done and time.process_time() - began < seconds:
            for seq, event in self._engine.step():
                text = self._running[seq]
                text.add(event, self._engine.now)
                if event.finish_reason is not None:
                    del self._running[seq]
                    self._n_complete += any(text is one for one in self._measured)
                    self._submit()

    def close(self) -> None:
        """Cancel the fillers; the engine is not used again."""
        for seq in self._running:
            self._engine.cancel(seq)

    def record(self, failures: int = 0) -> CellRecord:
        """Return the record of a run that is done, in a turn with so many exceptions of speculators."""
        digest = hashlib.blake2b(digest_size=8)
        for text in self.texts:
            digest.update(np.asarray([len(text), *text], np.int32).tobytes())
        return CellRecord(
            seconds=[round(one.seconds, 6) for one in self._measured],
            first_s=[round(one.first_s, 6) for one in self._measured],
            tokens=sum(len(one.tokens) for one in self._measured),
            forwards=sum(one.forwards for one in self._measured),
            trees=self._engine.drafted.trees,
            nodes=self._engine.drafted.nodes,
            host_s=round(self._engine.host_s, 6),
            digest=digest.hexdigest(),
            failures=failures,
        )

    def _submit(self) -> None:
        """Submit the next text."""
        number = (self._workload.first + self._n_submitted) % len(self._workload.jobs)
        job = self._workload.jobs[number]
        text = _RunningText(self._engine.now)
        seq = self._engine.submit(Request([*job.prompt], job.params, self._method, self._max_nodes))
        self._assign(seq, number)
        self._running[seq] = text
        if self._n_submitted < self._workload.n_measured:
            self._measured.append(text)
        self._n_submitted += 1
