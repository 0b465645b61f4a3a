"""Settings of a store, and the records that it keeps and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from retrieval_store.snapshots.snapshot import Manifest

MOST_BEFORE = 100  # versions that rollbacks can reach
MOST_MOVES = 1000  # kept in the history


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Settings of a store; a value out of range raises ValueError."""

    grace_seconds: float = 3600.0  # a superseded version is kept for this long
    unused_seconds: float = 86_400.0  # a published version that is never activated is kept for this long
    upload_seconds: float = 600.0  # an interrupted upload is kept for this long
    chunk_bytes: int = 4 << 20  # of one value in Redis
    connect_seconds: float = 2.0
    read_seconds: float = 5.0  # without a byte from the store
    tokenizer_hash: str = ""  # snapshots of other tokenizers are refused; "": any

    def __post_init__(self) -> None:
        for name in ("unused_seconds", "upload_seconds", "connect_seconds", "read_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.grace_seconds < 0:
            raise ValueError(f"grace_seconds is {self.grace_seconds}; it must be at least 0")
        if not 1 <= self.chunk_bytes <= 256 << 20:
            raise ValueError(f"chunk_bytes is {self.chunk_bytes}; Redis takes 1 to {256 << 20}")


@dataclass(frozen=True, slots=True)
class Current:
    """Where ``current`` points."""

    version: str  # "": nowhere yet
    revision: int  # grows by one with every move; 0: never moved


class Pointer(msgspec.Struct, frozen=True):
    """``current``, and the earlier versions that rollbacks return to, the latest last."""

    version: str = ""
    revision: int = 0
    before: tuple[str, ...] = ()

    @property
    def current(self) -> Current:
        return Current(self.version, self.revision)

    def forward(self, version: str) -> Pointer:
        """The pointer after a move to ``version``."""
        before = (*self.before, self.version)[-MOST_BEFORE:] if self.version else ()
        return Pointer(version, self.revision + 1, before)

    def ways_back(self) -> list[Pointer]:
        """The pointers that a rollback may move to, the latest version first; rolling back twice goes back twice."""
        return [
            Pointer(version, self.revision + 1, self.before[:i])
            for i, version in reversed(list(enumerate(self.before)))
            if version != self.version
        ]


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One move of ``current``."""

    revision: int  # of ``current`` after the move
    version: str
    at: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Published:
    """One version in a store."""

    version: str
    manifest: Manifest | None  # None: it does not decode, or has another format
    is_current: bool
    expires_at: float | None = None  # seconds since 1970; None: it does not expire
    problem: str = ""  # why there is no manifest


@dataclass(frozen=True, slots=True)
class LiveText:
    """One entry of the log."""

    id: str  # opaque; ids are in the order of the entries
    tokens: Sequence[int]
