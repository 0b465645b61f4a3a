"""Reads the bytes of many tensors by several threads, each of which takes the next read of the files.

A single thread waits for the disk, then copies, then waits again. Several threads keep a disk or remote storage busy.
The temporary memory is one read per thread.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.weights.files import OpenFile
from engine.model.weights.meter import Meter
from engine.model.weights.sinks import Sink

READERS = 16  # threads
READ_BYTES = 4 << 20  # of one read
MOST_PARTS = 512  # of one read; the kernel takes at most 1,024 buffers in one call


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes to read from a file."""

    file: int  # number of the file; files are read one after the other
    first: int  # byte of the file
    n_bytes: int
    unit: int  # bytes that one read must contain together; ``n_bytes`` is a multiple


@dataclass(frozen=True, slots=True)
class ExtentPart:
    """Bytes of one extent in one read."""

    extent: int  # number of the extent
    first: int  # byte of the extent
    n_bytes: int


@dataclass(frozen=True, slots=True)
class FileRead:
    """Bytes of a file that are read at once: adjacent parts."""

    file: int
    first: int  # byte of the file
    parts: tuple[ExtentPart, ...]

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in self.parts)


def plan_reads(extents: Sequence[Extent], largest: int) -> list[FileRead]:
    """Return reads that contain every byte of every extent once, in the order of files and offsets.

    Adjacent extents share a read, so many small ones take one read.

    Args:
        extents: in any order.
        largest: bytes of a read; only a larger unit exceeds it.
    """
    reads: list[FileRead] = []
    parts: list[ExtentPart] = []
    begin = end = 0  # of the read that is being put together

    def finish(file: int) -> None:
        if parts:
            reads.append(FileRead(file, begin, tuple(parts)))
            parts.clear()

    order = sorted(range(len(extents)), key=lambda i: (extents[i].file, extents[i].first))
    file = -1
    for i in order:
        extent, done = extents[i], 0
        while done < extent.n_bytes:
            at = extent.first + done
            if (extent.file, at) != (file, end) or len(parts) == MOST_PARTS:
                finish(file)
            room = largest - (end - begin if parts else 0)
            n = min(extent.n_bytes - done, room // extent.unit * extent.unit)
            if n <= 0:  # not even a unit
                finish(file)
                n = min(extent.n_bytes - done, max(1, largest // extent.unit) * extent.unit)
            if not parts:
                file, begin, end = extent.file, at, at
            parts.append(ExtentPart(i, done, n))
            done, end = done + n, end + n
    finish(file)
    return reads


def read_tensors(sinks: Sequence[Sink], meter: Meter, device: torch.device) -> None:
    """Pass every sink all bytes of its tensor, in the order of their offsets.

    Args:
        sinks: of tensors of open files.
        meter: counts the bytes.
        device: of the tensors; for a GPU the temporary memory is pinned.

    Raises:
        UnsupportedModelError: a file cannot be read, or was cut short.
    """
    sinks = [sink for sink in sinks if sink.place.n_bytes]
    files = sorted({sink.place.file for sink in sinks}, key=lambda file: file.path)
    numbers = {file: number for number, file in enumerate(files)}
    extents = [Extent(numbers[sink.place.file], sink.place.first, sink.place.n_bytes, sink.unit) for sink in sinks]
    reads = plan_reads(extents, READ_BYTES)
    reading = _ReadQueue(files, sinks, reads, meter, device.type == "cuda")
    n_readers = min(READERS, len(reads))
    with meter.reading(sum(one.n_bytes for one in reads)):
        if n_readers == 0:
            return
        with ThreadPoolExecutor(n_readers, "weights") as threads:
            running = [threads.submit(reading.run) for _ in range(n_readers)]
            try:
                for one in as_completed(running):
                    one.result()
            finally:
                reading.stop()


class _ReadQueue:
    """Remaining reads; every thread calls ``run``."""

    def __init__(
        self, files: list[OpenFile], sinks: Sequence[Sink], reads: list[FileRead], meter: Meter, is_pinned: bool
    ) -> None:
        self._files = files
        self._sinks = sinks
        self._meter = meter
        self._is_pinned = is_pinned
        self._largest = max((one.n_bytes for one in reads), default=0)
        self._lock = threading.Lock()
        self._reads: Iterator[FileRead] = iter(reads)

    def stop(self) -> None:
        """Drop the remaining reads, because a thread failed or the process ends."""
        with self._lock:
            self._reads = iter(())

    def run(self) -> None:
        """Process reads until none remains."""
        staging: Tensor | None = None
        while True:
            with self._lock:
                one = next(self._reads, None)
            if one is None:
                return
            memory = [self._sinks[part.extent].memory(part.first, part.n_bytes) for part in one.parts]
            if staging is None and None in memory:
                staging = _staging(self._largest, self._is_pinned)
            try:
                self._process(one, memory, staging)
            except BaseException:
                self.stop()
                raise

    def _process(self, one: FileRead, memory: list[memoryview | None], staging: Tensor | None) -> None:
        """Read into the memory of the sinks, or into ``staging`` for sinks without memory; then put the latter."""
        buffers, staged, end = [], [], 0
        for part, own in zip(one.parts, memory, strict=True):
            if own is None:
                assert staging is not None
                raw = staging[end : end + part.n_bytes]
                end += part.n_bytes
                staged.append((part, raw))
                own = memoryview(raw.numpy())  # type: ignore[arg-type]
            buffers.append(own)
        self._files[one.file].fill(buffers, one.first)
        for part, raw in staged:
            sink = self._sinks[part.extent]
            sink.put(part.first, _as(raw, sink.place.dtype))
        self._meter.add(one.n_bytes)


def _staging(n_bytes: int, pinned: bool) -> Tensor:
    """Return a thread's temporary memory. The system gets a mapping back at once; the allocator might keep it."""
    if pinned:
        return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, n_bytes), dtype=torch.uint8)


def _as(raw: Tensor, dtype: torch.dtype) -> Tensor:
    aligned = raw.storage_offset() % dtype.itemsize == 0
    return (raw if aligned else raw.clone()).view(dtype)
