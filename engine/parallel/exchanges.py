"""Exchanges of sums between the ranks of a stage: over the leader's links on a CPU, by a process group on GPUs.

On a CPU the links form a star: the leader adds the sums of all ranks and sends the completed rows back. That takes
2 (T - 1) messages and no call can deadlock; no data passes through anything but authenticated links. **The process
group has run with gloo only, never on a GPU.**
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore  # torch.distributed has it too, but untyped

from engine.device import bytes_of
from engine.model.exchange import FinishSums, RankExchange, add_tree
from engine.model.share import RankShare
from engine.parallel.commands import HeadCommand, RankLink, encode_command

# Rows from which it takes less time that every rank completes its share of the rows, which moves fewer bytes in one
# exchange more: 512 for 2 ranks, 128 for 4, 32 for 8 (12 us an exchange, 450 GB/s; an estimate, not measured).
BY_ROWS = 2048  # over the square of the number of ranks
WAIT_S = 60.0  # seconds for building and for aborting a process group; gloo's exchanges take no longer
# Read by torch when a group is created. By default a lost peer ends the process; here it ends the connection only.
NCCL_ENVIRONMENT = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
WATCH_S = 0.1  # seconds between two checks of all links


class StarExchange:
    """Implements ``engine.model.exchange.RankExchange`` on host tensors.

    Args:
        share: of this rank.
        links: the leader's to ranks 1, 2, ..; another rank's to the leader.
    """

    is_lost = False  # a lost link raises by itself

    def __init__(self, share: RankShare, links: Sequence[RankLink]) -> None:
        self._share_of_rank, self._links = share, links

    def add(self, partial: Tensor, out: Tensor, finish: FinishSums) -> None:
        """See ``RankExchange.add``."""
        if self._share_of_rank.rank == 0:
            finish(add_tree(self._receive_parts(partial)), slice(0, len(out)))
        else:
            self._links[0].send_all([bytes_of(partial)])
        self.broadcast(out)

    def gather(self, part: Tensor) -> Tensor:
        """See ``RankExchange.gather``."""
        whole = self.collect(part)
        if self._share_of_rank.rank > 0:
            whole = part.new_empty(len(part), self._share_of_rank.size * part.shape[1])
        self.broadcast(whole)
        return whole

    def share(self, rows: Tensor) -> None:
        """See ``RankExchange.share``."""
        share_rows(self, self._links, rows)

    def broadcast(self, rows: Tensor) -> None:
        """See ``RankExchange.broadcast``."""
        for link in self._links:
            if self._share_of_rank.rank == 0:
                link.send_all([bytes_of(rows)])
            else:
                link.receive_into(bytes_of(rows))

    def collect(self, part: Tensor) -> Tensor:
        """See ``RankExchange.collect``."""
        if self._share_of_rank.rank == 0:
            return torch.cat(self._receive_parts(part), dim=1)
        self._links[0].send_all([bytes_of(part.contiguous())])
        return part

    def _receive_parts(self, own: Tensor) -> list[Tensor]:
        """Return the parts of all ranks, of this shape."""
        found = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in self._links]
        for link, tensor in zip(self._links, found, strict=True):
            link.receive_into(bytes_of(tensor))
        return [own, *found]

    def close(self, waits: bool = False) -> None:
        """See ``RankExchange.close``."""


class GroupExchange:
    """Implements ``engine.model.exchange.RankExchange`` by a process group of all ranks.

    Few rows are exchanged by one all-gather of partial sums, and every rank adds the upper tree. With many rows each
    rank gets all partial sums of its share of the rows, completes them, and gathers the rounded rows.

    NCCL notices no lost rank: its kernels would wait forever. A thread aborts the group once a link hangs up.

    Args:
        share: of this rank.
        links: as for ``StarExchange``.
        device: of the tensors.
        backend: "nccl", or "gloo" for tests on a CPU.
        file: rendezvous that all ranks of the group name, and no other group.

    Raises:
        EOFError: a rank is gone, or too slow.
    """

    def __init__(
        self, share: RankShare, links: Sequence[RankLink], device: torch.device, backend: str, file: str
    ) -> None:
        self._share_of_rank, self._links, self.is_lost = share, links, False
        self._group: Any = None
        self._closed = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="rank-watchdog", daemon=True)
        try:
            build_within(WAIT_S, lambda: self._build(device, backend, file), lambda: self._hangs_up(0.0))
        except BaseException as error:
            self._closed.set()  # the watchdog aborts at once
            if isinstance(error, RuntimeError):
                raise EOFError(f"no process group of {share.size} ranks: {error}") from error
            raise
        finally:
            self._watchdog.start()

    def _build(self, device: torch.device, backend: str, file: str) -> None:
        share, limit = self._share_of_rank, timedelta(seconds=WAIT_S)
        store = FileStore(file, share.size)
        store.set_timeout(limit)
        if backend == "nccl":
            os.environ.update(NCCL_ENVIRONMENT)
            self._group = dist.ProcessGroupNCCL(store, share.rank, share.size, dist.ProcessGroupNCCL.Options())
        else:
            self._group = dist.ProcessGroupGloo(store, share.rank, share.size, limit)
        self.broadcast(torch.zeros(1, 1, device=device))  # NCCL connects with the first exchange
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def _hangs_up(self, within: float) -> bool:
        return any(link.hangs_up(within / len(self._links)) for link in self._links)

    def _watch(self) -> None:
        while not self._closed.is_set() and not self._hangs_up(WATCH_S):
            pass
        self.is_lost = True  # before results can be garbage
        abort = getattr(self._group, "abort", None)  # older gloo has none: its waits are limited
        if abort is not None:
            abort()

    def add(self, partial: Tensor, out: Tensor, finish: FinishSums) -> None:
        """See ``RankExchange.add``."""
        n, size = len(partial), self._share_of_rank.size
        by_rows = n * size * size >= BY_ROWS and n % size == 0
        parts = partial.new_empty(n if by_rows else size * n, partial.shape[1])
        if not by_rows:
            self._wait(self._group._allgather_base(parts, partial))
            finish(parts, slice(0, n))
            return
        own = slice(self._share_of_rank.rank * n // size, (self._share_of_rank.rank + 1) * n // size)
        self._wait(self._group.alltoall_base(parts, partial, [], []))
        finish(parts, own)
        self._wait(self._group._allgather_base(out, out[own].clone()))

    def gather(self, part: Tensor) -> Tensor:
        """See ``RankExchange.gather``."""
        parts = part.new_empty(self._share_of_rank.size, *part.shape)
        self._wait(self._group._allgather_base(parts.view(-1, part.shape[1]), part.contiguous()))
        return parts.transpose(0, 1).reshape(len(part), -1)

    def share(self, rows: Tensor) -> None:
        """See ``RankExchange.share``."""
        share_rows(self, self._links, rows)

    def broadcast(self, rows: Tensor) -> None:
        """See ``RankExchange.broadcast``."""
        self._wait(self._group.broadcast([rows]))

    def collect(self, part: Tensor) -> Tensor:
        """See ``RankExchange.collect``; all ranks get all columns, as NCCL has no gather to one."""
        return self.gather(part)

    def _wait(self, work: Any) -> None:
        try:
            work.wait()  # of NCCL: blocks the stream, not the host
        except torch.AcceleratorError:  # this device is broken, not another rank
            raise
        except RuntimeError as error:
            raise EOFError(f"the ranks lost each other: {error}") from error

    def close(self, waits: bool = False) -> None:
        """See ``RankExchange.close``: the watchdog aborts the group."""
        self._closed.set()
        if waits:
            self._watchdog.join(WAIT_S)


def share_rows(exchange: RankExchange, links: Sequence[RankLink], rows: Tensor) -> None:
    """Announce rows for the head to the other ranks, then broadcast them; only the leader does so."""
    for link in links:
        link.send(encode_command(HeadCommand(len(rows))))
    exchange.broadcast(rows)


def build_within(seconds: float, build: Callable[[], None], is_abandoned: Callable[[], bool]) -> None:
    """Run ``build``, which may block in a library beyond any deadline of its own; on EOFError the caller aborts it.

    Raises:
        EOFError: it takes longer than ``seconds``, or ``is_abandoned`` has become true.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            build()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="process-group", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive():
        thread.join(min(WATCH_S, seconds))
        if thread.is_alive() and is_abandoned():
            raise EOFError("the process group that was being built is no longer needed")
        if thread.is_alive() and time.monotonic() > deadline:
            raise EOFError(f"no process group was built within {seconds:.0f} seconds")
    if failed:
        raise failed[0]
