"""How ``current`` moves: revisions, and the way back. Plain values; stores keep them and make moves atomic."""

from __future__ import annotations

from typing import Any

import msgspec

from retrieval_store.errors import StoreError
from retrieval_store.snapshots.names import is_version
from retrieval_store.stores.base import Current, Move

MOST_BEFORE = 100  # versions that rollbacks can reach
MOST_MOVES = 1000  # of the history


class Pointer(msgspec.Struct, frozen=True):
    """``current`` and the versions that rollbacks go through, the latest last."""

    version: str = ""
    revision: int = 0
    before: tuple[str, ...] = ()

    @property
    def current(self) -> Current:
        """Version and revision, for users of a store."""
        return Current(self.version, self.revision)

    def forward(self, version: str) -> Pointer:
        """Moved on to ``version``."""
        before = (*self.before, self.version)[-MOST_BEFORE:] if self.version else ()
        return Pointer(version, self.revision + 1, before)

    def ways_back(self) -> list[Pointer]:
        """Moved back, the latest version first; rolling back twice goes back twice."""
        steps = range(len(self.before) - 1, -1, -1)
        return [
            Pointer(self.before[step], self.revision + 1, self.before[:step])
            for step in steps
            if self.before[step] != self.version
        ]


def decode_pointer(version: str, revision: str, before: str, where: str) -> Pointer:
    """A pointer from text; ``before`` is separated by spaces.

    Raises:
        StoreError: it does not decode.
    """
    names = tuple(before.split())
    if not (revision.isascii() and revision.isdigit() and len(revision) < 19):
        raise StoreError(f"{where}: the revision of current is {revision[:40]!r}, not a number")
    if not all(is_version(name) for name in (version, *names)):
        raise StoreError(f"{where}: current does not decode: {version[:40]!r} after {before[:80]!r}")
    return Pointer(version, int(revision), names)


def decode_move(raw: bytes, where: str) -> Move:
    """One entry of the history.

    Raises:
        StoreError: it does not decode.
    """
    try:
        fields: Any = msgspec.json.decode(raw, type=tuple[int, str, float])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{where}: the history does not decode: {error}") from error
    return Move(*fields)


def encode_move(move: Move) -> bytes:
    """See ``decode_move``."""
    return msgspec.json.encode((move.revision, move.version, move.at))
