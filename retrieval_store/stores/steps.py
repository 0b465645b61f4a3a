"""The steps that each kind of store implements for ``Store``. Each of them is atomic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from retrieval_store.errors import ConflictError, StoreUnavailableError, UnknownVersionError
from retrieval_store.snapshots.snapshot import FileEntry
from retrieval_store.stores.records import Move, Pointer, StoreOptions


class StoreSteps(ABC):
    """Steps of publishing, of moving ``current`` and of the log.

    A *place* is where one snapshot lies, a version or an upload in progress. Only the store that made it can read it.
    """

    def __init__(self, namespace: str, url: str, options: StoreOptions) -> None:
        self.namespace = namespace
        self.url = url  # without a password
        self.options = options
        self.where = f"namespace {namespace!r} of {url}"  # for messages

    @abstractmethod
    def _place(self, version: str) -> str:
        """Return where a version lies or would lie."""

    @abstractmethod
    def _begin(self, manifest: bytes) -> str:
        """Begin an upload and return its place; it expires unless it is committed."""

    @abstractmethod
    def _write(self, place: str, name: str, blocks: Iterator[bytes]) -> None:
        """Add a file to an upload."""

    @abstractmethod
    def _renew(self, place: str) -> None:
        """Put off the expiry of an upload, as a write does."""

    @abstractmethod
    def _commit(self, place: str, version: str, replace: bool, unused: float) -> None:
        """Make an upload a version that stays for at least ``unused`` seconds.

        A version that exists keeps its contents, unless ``replace`` is set.
        """

    @abstractmethod
    def _abandon(self, place: str) -> None:
        """Remove an upload; raises nothing."""

    @abstractmethod
    def _raw_manifest(self, place: str) -> bytes | None:
        """Return the manifest of a version, None if there is no such version."""

    @abstractmethod
    def _blocks(self, place: str, name: str, entry: FileEntry) -> Iterator[bytes]:
        """Return the blocks of a file, which may be too few."""

    @abstractmethod
    def _keep(self, version: str, unused: float) -> bool:
        """Let a version that may expire stay for at least ``unused`` seconds; return False if it is gone."""

    @abstractmethod
    def _retire(self, version: str) -> bool | None:
        """Let a version expire unless it is current; return whether it is, None if there is none."""

    @abstractmethod
    def _pointer(self) -> Pointer:
        """Return where ``current`` points."""

    @abstractmethod
    def _compare_and_set(self, old: Pointer, new: Pointer) -> None:
        """Replace ``old`` by ``new``: the new version stays, the old one expires, the history grows.

        Raises:
            ConflictError: ``current`` has moved since ``old`` was read.
            UnknownVersionError: the version of ``new`` is gone.
        """

    @abstractmethod
    def _history(self, limit: int) -> list[Move]:
        """Return the last ``limit`` moves of ``current``."""

    @abstractmethod
    def _append(self, texts: Sequence[bytes], limit: int) -> None:
        """Append texts to the log, and keep about the last ``limit`` entries."""

    @abstractmethod
    def _entries(self, after: tuple[int, int], limit: int) -> Iterable[tuple[str, bytes]]:
        """Return the ids and texts of at most ``limit`` entries of the log, from the first one after ``after``."""

    @abstractmethod
    def _trim(self, upto: tuple[int, int]) -> None:
        """Remove the entries of the log up to and including ``upto``."""

    def _called(self, version: str) -> str:
        return f"{version} in {self.where}"

    def _lost(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self.where} lost the unfinished upload, perhaps by a restart: publish again")

    def _unknown(self, version: str) -> UnknownVersionError:
        return UnknownVersionError(f"{self.where} has no version {version}: it was never published, or it expired")

    def _conflict(self, expected: int, found: int | None = None) -> ConflictError:
        now = "it has moved since" if found is None else f"it is at revision {found}"
        return ConflictError(f"{self.where}: current should be at revision {expected}, but {now}; read it and retry")
