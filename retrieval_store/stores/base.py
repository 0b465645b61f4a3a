"""The interface of a store of snapshots, and its settings.

A store is opened for one namespace. It holds immutable versions, one ``current`` pointer that moves by compare-and-set,
the history of that pointer, and a log of live texts. Calls block; a store belongs to one thread unless it says
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retrieval_store.snapshots.snapshot import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Settings of a store.

    Raises:
        ValueError: a value is out of range.
    """

    grace_seconds: float = 3600.0  # how long a superseded version stays
    unused_seconds: float = 86_400.0  # how long a published version stays that is never activated
    upload_seconds: float = 600.0  # how long what an interrupted upload left stays
    chunk_bytes: int = 4 << 20  # of one value in Redis
    connect_seconds: float = 2.0
    read_seconds: float = 5.0  # without a byte from the store
    ca_file: str = ""  # PEM; "": the system's authorities; a URL's ?ca= wins
    tokenizer_hash: str = ""  # snapshots of other tokenizers are refused; "": any

    def __post_init__(self) -> None:
        for name in ("unused_seconds", "upload_seconds", "connect_seconds", "read_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} {getattr(self, name)} must be above 0")
        if self.grace_seconds < 0:
            raise ValueError(f"grace_seconds {self.grace_seconds} must be at least 0")
        if not 1 <= self.chunk_bytes <= 256 << 20:
            raise ValueError(f"chunk_bytes {self.chunk_bytes} must be within 1 and {256 << 20}: Redis takes no more")


@dataclass(frozen=True, slots=True)
class Current:
    """Where ``current`` points."""

    version: str  # "": nowhere yet
    revision: int  # grows by one with every move; 0: never moved


@dataclass(frozen=True, slots=True)
class Move:
    """One move of ``current``."""

    revision: int  # of ``current`` after the move
    version: str
    at: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Published:
    """One version in a store."""

    version: str
    manifest: Manifest | None  # None: it does not decode, or is of another format
    is_current: bool
    expires_at: float | None = None  # seconds since 1970, of a version that is superseded or unused; None: stays
    problem: str = ""  # why there is no manifest


@dataclass(frozen=True, slots=True)
class LiveText:
    """One entry of the log."""

    id: str  # ordered within a store like the entries; opaque
    tokens: Sequence[int]


class Store(Protocol):
    """Snapshots and live texts of one namespace.

    Every method raises ``StoreUnavailableError`` when the store cannot be reached.
    """

    namespace: str
    url: str  # without a password

    def publish(self, folder: Path, unused: float | None = None) -> str:
        """Upload the verified snapshot in ``folder`` and return its version; ``current`` does not move.

        What was uploaded is read back and verified before the version appears in ``versions``. It expires unless it is
        activated in time, so that a publisher that dies before it can do so leaves nothing for ever. Publishing a
        version that is there already checks it, puts its expiry off and replaces it only if it is damaged. Safe to run
        twice at once.

        Args:
            folder: of the snapshot.
            unused: seconds that the version stays without being activated; None: those of the store's options.

        Raises:
            SnapshotError: the snapshot in ``folder`` is damaged or foreign.
        """

    def current(self) -> Current:
        """Where ``current`` points."""

    def activate(self, version: str, expected: int | None = None) -> Current:
        """Point ``current`` at a published version, which then stays; the one before expires after the grace period.

        Where ``current`` points there already, nothing moves.

        Args:
            version: to point at. It is verified first.
            expected: the revision that ``current`` must have; None: whatever it has when the call begins.

        Raises:
            UnknownVersionError: there is no such version.
            DamagedSnapshotError: it does not verify.
            ConflictError: ``current`` has, or meanwhile got, another revision.
        """

    def rollback(self) -> Current:
        """Point ``current`` at the version it had before, as a new move; the latest one that is there and verifies.

        Rolling back twice goes back twice.

        Raises:
            UnknownVersionError: there is none.
            ConflictError: ``current`` moved meanwhile.
        """

    def retire(self, version: str) -> None:
        """Let a version expire after the grace period, for example one that lost a race to become current.

        Raises:
            UnknownVersionError: there is no such version.
            ConflictError: it is current.
        """

    def history(self, limit: int = 100) -> list[Move]:
        """The last ``limit`` moves of ``current``, the latest last."""

    def versions(self) -> list[Published]:
        """All versions, the newest last. Expired ones are not listed, and may be removed by any call.

        A version whose manifest cannot be read, such as one of another format version, is listed with the reason.
        """

    def manifest(self, version: str) -> Manifest:
        """Metadata of a version.

        Raises:
            UnknownVersionError: there is no such version.
        """

    def fetch(self, version: str, folder: Path) -> Path:
        """A verified local copy of a version, at ``folder/version``; free if it is there already.

        Written beside and renamed, so that processes can share ``folder`` and never see half a snapshot.

        Raises:
            UnknownVersionError: there is no such version.
            DamagedSnapshotError: what was fetched does not verify; ``folder`` is left without it.
        """

    def wait(self, timeout: float) -> bool:
        """Sleep until ``current`` may have moved or a text was appended, ``timeout`` seconds at most.

        A hint: True means look, False that nothing was heard. Poll as well. Raises nothing: while the store is away the
        answer is False, and once it is back True. May be called in another thread than the other methods.
        """

    def append(self, texts: Sequence[Sequence[int]], limit: int) -> None:
        """Append to the log of live texts and keep about the last ``limit`` entries.

        Raises:
            ValueError: a token id is negative or above int32.
        """

    def entries(self, after: str = "", limit: int = 1000) -> list[LiveText]:
        """Entries behind the one with id ``after`` ("": from the beginning), oldest first, ``limit`` at most.

        An entry that does not decode has no tokens, so that readers get past it; a warning names the first of them.

        Raises:
            StoreError: ``after`` is no id; the message names it.
        """

    def trim(self, upto: str) -> None:
        """Forget entries up to and including the one with this id."""

    def close(self) -> None:
        """Close connections and end threads; harmless twice."""
