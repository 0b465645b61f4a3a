"""One method's streams on one engine: each writes a text, and goes on until the slowest has written its own."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.never_slower.cells import Cell, CellRecord
from benchmarks.never_slower.engines import ClockedEngine, VirtualEngine
from engine.request import Request
from engine.sampling.params import SamplingParams

GO_ON = 4  # times the wanted tokens that a stream writes at most, so that the others do not decode in a smaller batch


@dataclass(frozen=True, slots=True)
class StreamWorkload:
    """What every stream of a run writes."""

    prompts: Sequence[list[int]]
    seeds: Sequence[int]
    tokens: int  # of a text, unless one of ``ends`` comes before
    ends: tuple[int, ...]
    longest: int  # tokens that a prompt and its text can have
    max_nodes: int


@dataclass(slots=True)
class _TextStream:
    """One text in the making."""

    tokens: list[int] = field(default_factory=list)
    first_s: float = 0.0
    done_s: float | None = None  # when the text was there
    forwards: int = -1  # the first token comes from the prefill

    def take(self, token_ids: Sequence[int], now: float, wanted: StreamWorkload) -> None:
        if self.done_s is not None:
            return
        if not self.tokens:
            self.first_s = now
        self.forwards += 1
        self.tokens += token_ids
        ends = (i + 1 for i, token in enumerate(self.tokens[: wanted.tokens]) if token in wanted.ends)
        end = next(ends, wanted.tokens)
        if len(self.tokens) >= end:
            del self.tokens[end:]
            self.done_s = now


class MethodRun:
    """One method's run over the streams of a cell.

    A stream's time ends with its text, but it goes on writing: so all texts are written in a batch of the same size,
    and the sum of the streams' times over the number of streams is what these texts cost a machine that is kept busy.

    Args:
        cell: of the run.
        turn: of the cell.
        method: of speculation; ``METHOD@NODES`` replaces the default number of nodes.
        engine: fresh; its pool may know earlier requests.
        wanted: what the streams write.
    """

    def __init__(
        self, cell: Cell, turn: int, method: str, engine: ClockedEngine | VirtualEngine, wanted: StreamWorkload
    ) -> None:
        self.method = method
        self._cell, self._turn, self._engine, self._wanted = cell, turn, engine, wanted
        self._wall = self._processor = 0.0
        self._streams: dict[int, _TextStream] = {}
        name, _, nodes = method.partition("@")
        for prompt, seed in zip(wanted.prompts, wanted.seeds, strict=True):
            room = min(GO_ON * wanted.tokens, wanted.longest - len(prompt))
            params = SamplingParams(max_tokens=room, temperature=cell.temperature, seed=seed)
            seq = engine.submit(Request(prompt, params, name, int(nodes or wanted.max_nodes)))
            self._streams[seq] = _TextStream()
        self._left = len(self._streams)

    @property
    def is_done(self) -> bool:
        """Whether all texts are there."""
        return self._left == 0

    @property
    def progress(self) -> float:
        """Share of the texts that is there."""
        shares = (
            1.0 if one.done_s is not None else len(one.tokens) / self._wanted.tokens for one in self._streams.values()
        )
        return sum(shares) / len(self._streams)

    @property
    def texts(self) -> list[tuple[int, ...]]:
        """Of the streams, in order."""
        return [tuple(one.tokens) for one in self._streams.values()]

    def advance(self, seconds: float) -> None:
        """Go on for ``seconds`` of this process."""
        wall, processor = time.perf_counter(), time.process_time()
        while not self.is_done and time.process_time() - processor < seconds:
            for seq, event in self._engine.step():
                stream = self._streams[seq]
                was_done = stream.done_s is not None
                stream.take(event.token_ids, self._engine.now, self._wanted)
                self._left -= stream.done_s is not None and not was_done
        self._wall += time.perf_counter() - wall
        self._processor += time.process_time() - processor

    def close(self) -> None:
        """Take the streams from the speculators; the engine is not used again."""
        for seq in self._streams:
            self._engine.pool.end(seq)

    def record(self, failures: int = 0) -> CellRecord:
        """Of a run that is done, in a turn in which speculators failed so often."""
        streams = self._streams.values()
        digest = hashlib.blake2b(digest_size=8)
        for text in self.texts:
            digest.update(np.asarray([len(text), *text], np.int32).tobytes())
        return CellRecord(
            self._cell,
            self._turn,
            self.method,
            seconds=[round(one.done_s or 0.0, 6) for one in streams],
            first_s=[round(one.first_s, 6) for one in streams],
            tokens=sum(len(one.tokens) for one in streams),
            forwards=sum(one.forwards for one in streams),
            trees=self._engine.drafted.trees,
            nodes=self._engine.drafted.nodes,
            host_s=round(self._engine.host_s, 6),
            wall_s=round(self._wall, 3),
            processor_s=round(self._processor, 3),
            digest=digest.hexdigest(),
            failures=failures,
            load=round(os.getloadavg()[0], 2),
        )
