"""How wanted bytes of files are cut into pieces that are read at once, in the order in which they lie on the disk.

Knows bytes, and nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_PARTS = 512  # of a piece; the kernel takes at most 1,024 buffers in one call


@dataclass(frozen=True, slots=True)
class Extent:
    """Wanted bytes of a file."""

    file: int  # number of the file; files are read one behind the other
    first: int  # byte of the file
    n_bytes: int
    unit: int  # bytes that must not be torn apart; ``n_bytes`` is a multiple


@dataclass(frozen=True, slots=True)
class ExtentPart:
    """Bytes of one extent in a piece."""

    extent: int  # number of the extent
    first: int  # byte of the extent
    n_bytes: int


@dataclass(frozen=True, slots=True)
class FileRead:
    """Bytes of a file that are read at once: its parts, which lie one behind the other."""

    file: int
    first: int  # byte of the file
    parts: tuple[ExtentPart, ...]

    @property
    def n_bytes(self) -> int:
        """Of all parts."""
        return sum(part.n_bytes for part in self.parts)


def cut(extents: Sequence[Extent], largest: int) -> list[FileRead]:
    """Pieces that hold every byte of every extent once, ordered by file and place in it.

    Extents that lie one behind the other share pieces, so that many small ones are one read.

    Args:
        extents: in any order.
        largest: bytes of a piece; only a unit that is larger exceeds it.
    """
    pieces: list[FileRead] = []
    parts: list[ExtentPart] = []
    begin = end = 0  # of the piece that is being put together

    def finish(file: int) -> None:
        if parts:
            pieces.append(FileRead(file, begin, tuple(parts)))
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
    return pieces
