"""Ranks of a stage as threads of one process, which run one at a time, as Triton's interpreter needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from engine.model.exchange import FinishSums, RankExchange

_T = TypeVar("_T")


class RankThreads:
    """Runs a function on every rank.

    Args:
        size: ranks.
        by_rows: whether every rank completes the sums of its own rows; otherwise all complete all rows.
    """

    def __init__(self, size: int, by_rows: bool = False) -> None:
        self.by_rows, self._turn = by_rows, threading.Lock()
        self._barrier, self._sent = threading.Barrier(size), [torch.empty(0)] * size

    def run(self, call: Callable[[ThreadExchange], _T]) -> list[_T]:
        """Return the results of ``call`` on all ranks; a rank's error ends the others."""

        def run_rank(rank: int) -> _T:
            try:
                with self._turn:
                    return call(ThreadExchange(self, rank))
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(len(self._sent)) as threads:
            found = [threads.submit(run_rank, rank) for rank in range(len(self._sent))]
        errors = [error for one in found if (error := one.exception()) is not None]
        for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
            raise error
        return [one.result() for one in found]

    def swap(self, rank: int, own: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, when all have called this; others run meanwhile."""
        self._sent[rank] = own.clone()
        self._wait()
        found = [*self._sent]
        self._wait()
        return found

    def _wait(self) -> None:
        self._turn.release()
        try:
            self._barrier.wait(60)
        finally:
            self._turn.acquire()


class ThreadExchange(RankExchange):
    """One rank's end."""

    def __init__(self, threads: RankThreads, rank: int) -> None:
        self._threads, self.rank = threads, rank

    def add(self, partial: Tensor, out: Tensor, finish: FinishSums) -> None:
        parts, n = self._threads.swap(self.rank, partial), len(partial)
        if not self._threads.by_rows:
            finish(torch.cat(parts), slice(0, n))
            return
        width = -(-n // len(parts))
        own = slice(min(n, self.rank * width), min(n, (self.rank + 1) * width))
        finish(torch.cat([part[own] for part in parts]), own)
        out.copy_(torch.cat(self._threads.swap(self.rank, out[own])))

    def gather(self, part: Tensor) -> Tensor:
        return torch.cat(self._threads.swap(self.rank, part), 1)

    def share(self, rows: Tensor) -> None:
        self._threads.swap(self.rank, rows)

    def broadcast(self, rows: Tensor) -> None:
        """See ``RankExchange.broadcast``; also how other ranks get what the leader shares."""
        rows.copy_(self._threads.swap(self.rank, rows)[0])

    def collect(self, part: Tensor) -> Tensor:
        parts = self._threads.swap(self.rank, part)
        return part if self.rank else torch.cat(parts, 1)
