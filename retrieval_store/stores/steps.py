"""The single steps of which every store's work consists; a kind of store makes each of them atomic.

A *place* is the location of one snapshot, a version or an upload in progress; only the store itself can read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from retrieval_store.snapshots.snapshot import FileEntry
from retrieval_store.stores.pointer import Pointer


class StoreSteps(ABC):
    """What a kind of store implements for `CommonStore`."""

    @abstractmethod
    def _place(self, version: str) -> str:
        """Where a version lies or would lie."""

    @abstractmethod
    def _begin(self, version: str, raw: bytes) -> str:
        """Begin an upload with this manifest, which goes away by itself if it is never finished."""

    @abstractmethod
    def _write(self, place: str, name: str, blocks: Iterator[bytes]) -> None:
        """Add a file to an upload."""

    @abstractmethod
    def _renew(self, place: str) -> None:
        """Let an upload live on as after a write."""

    @abstractmethod
    def _commit(self, place: str, version: str, replace: bool, unused: float) -> None:
        """Make an upload a version that stays for ``unused`` seconds; of one that is there already, ``replace`` the
        contents or keep them, and put its expiry off."""

    @abstractmethod
    def _abandon(self, place: str) -> None:
        """Remove an upload; raises nothing."""

    @abstractmethod
    def _raw_manifest(self, place: str) -> bytes | None:
        """The manifest; None: nothing is there."""

    @abstractmethod
    def _blocks(self, place: str, name: str, entry: FileEntry) -> Iterator[bytes]:
        """A file as it is there; ends early when it is too short."""

    @abstractmethod
    def _keep(self, version: str, unused: float) -> bool:
        """Put the expiry of a version off by ``unused`` seconds from now, if it has one; False: it is gone."""

    @abstractmethod
    def _retire(self, version: str) -> bool | None:
        """Let a version expire, if it is not current at this moment; True: it is; None: there is none."""

    @abstractmethod
    def _pointer(self) -> Pointer:
        """``current``."""

    @abstractmethod
    def _compare_and_set(self, old: Pointer, new: Pointer) -> None:
        """Replace ``old`` by ``new`` at once: its version stays, that of ``old`` expires, the history grows.

        Raises:
            ConflictError: ``current`` has moved since ``old`` was read.
            UnknownVersionError: the version of ``new`` is gone.
        """
