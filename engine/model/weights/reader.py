"""Reads the bytes of many tensors: some threads, each of which takes the next piece of the files.

One thread by itself waits for the disk, then copies, then waits again. Several keep a local disk busy, and as many
requests on their way to storage that is far. What is held beside the tensors is one piece for each thread.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import Tensor

from engine.model.weights.meter import Meter
from engine.model.weights.pieces import Extent, FileRead, cut
from engine.model.weights.sinks import Sink
from engine.model.weights.tensor_file import OpenFile

READERS = 16  # threads
PIECE = 4 << 20  # bytes that a thread reads at once


def read(sinks: Sequence[Sink], meter: Meter, device: torch.device) -> None:
    """Hand every sink all bytes of its tensor, in the order in which they lie in the files.

    Args:
        sinks: of tensors of open files.
        meter: is told what was read.
        device: where the tensors go: memory on the way to a GPU is pinned.

    Raises:
        UnsupportedModelError: a file cannot be read, or was cut short.
    """
    files = sorted({sink.place.file for sink in sinks}, key=lambda file: file.path)
    numbers = {file: number for number, file in enumerate(files)}
    extents = [
        Extent(numbers[sink.place.file], sink.place.first, sink.place.n_bytes, sink.unit)
        for sink in sinks
        if sink.place.n_bytes
    ]
    pieces = cut(extents, PIECE)
    pinned = device.type == "cuda"
    reading = _Reading(files, [sink for sink in sinks if sink.place.n_bytes], pieces, meter, pinned)
    n_readers = min(READERS, len(pieces))
    with meter.reading(sum(piece.n_bytes for piece in pieces)):
        if n_readers == 0:
            return
        with ThreadPoolExecutor(n_readers, "weights") as threads:
            running = [threads.submit(reading.run) for _ in range(n_readers)]
            try:
                for one in as_completed(running):
                    one.result()
            finally:
                reading.stop()


class _Reading:
    """Pieces that are still to be read; ``run`` is called by every reader."""

    def __init__(
        self, files: list[OpenFile], sinks: list[Sink], pieces: list[FileRead], meter: Meter, pinned: bool
    ) -> None:
        self._files = files
        self._sinks = sinks
        self._meter = meter
        self._pinned = pinned
        self._largest = max((piece.n_bytes for piece in pieces), default=0)
        self._lock = threading.Lock()
        self._pieces: Iterator[FileRead] = iter(pieces)

    def stop(self) -> None:
        """Leave the other pieces out: one of the readers has failed, or the process is to end."""
        with self._lock:
            self._pieces = iter(())

    def run(self) -> None:
        """Read pieces until there are none."""
        staging: Tensor | None = None
        while True:
            with self._lock:
                piece = next(self._pieces, None)
            if piece is None:
                return
            memory = [self._sinks[part.extent].memory(part.first, part.n_bytes) for part in piece.parts]
            if staging is None and None in memory:
                staging = _staging(self._largest, self._pinned)
            try:
                self._read(piece, memory, staging)
            except BaseException:
                self.stop()
                raise

    def _read(self, piece: FileRead, memory: list[memoryview | None], staging: Tensor | None) -> None:
        """Read a piece into the memory of its parts, and into ``staging`` where they have none; then put those."""
        buffers, staged, end = [], [], 0
        for part, own in zip(piece.parts, memory, strict=True):
            if own is None:
                assert staging is not None
                here = staging[end : end + part.n_bytes]
                end += part.n_bytes
                staged.append((part, here))
                own = memoryview(here.numpy())  # type: ignore[arg-type]
            buffers.append(own)
        self._files[piece.file].fill(buffers, piece.first)
        for part, here in staged:
            sink = self._sinks[part.extent]
            sink.put(part.first, _as(here, sink.place.dtype))
        self._meter.add(piece.n_bytes)


def _staging(n_bytes: int, pinned: bool) -> Tensor:
    """Memory of a reader. A map of its own goes back to the system with it; the allocator might keep it."""
    if pinned:
        return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, n_bytes), dtype=torch.uint8)


def _as(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as values."""
    aligned = raw.storage_offset() % dtype.itemsize == 0
    return (raw if aligned else raw.clone()).view(dtype)
