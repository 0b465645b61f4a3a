"""The part that all stores share: verify before a snapshot counts, move ``current``, fetch.

``CommonStore`` has the order of the steps (`steps`); a subclass knows where bytes are and makes single steps atomic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from retrieval_store.errors import (
    ConflictError,
    DamagedSnapshotError,
    SnapshotError,
    StoreError,
    StoreUnavailableError,
    UnknownVersionError,
)
from retrieval_store.snapshots.cache import SnapshotFolder
from retrieval_store.snapshots.files import checked, read_blocks, write_blocks
from retrieval_store.snapshots.names import check_version
from retrieval_store.snapshots.snapshot import (
    MANIFEST,
    FileEntry,
    Manifest,
    check_tokenizer,
    decode_manifest,
    read_manifest,
    verify,
)
from retrieval_store.stores.base import Current, Published, StoreOptions
from retrieval_store.stores.steps import StoreSteps


def put_off(expires_at: float | None, seconds: float) -> float | None:
    """When a version expires that is to stay for ``seconds`` from now; None: it stays for good, as before."""
    return None if expires_at is None else max(expires_at, time.time() + seconds)


class CommonStore(StoreSteps):
    """``Store`` but for ``versions``, ``history``, ``wait``, the log and ``close``."""

    def __init__(self, namespace: str, url: str, options: StoreOptions) -> None:
        self.namespace = namespace
        self.url = url
        self.options = options
        self.where = f"namespace {namespace!r} of {url}"  # for messages

    def publish(self, folder: Path, unused: float | None = None) -> str:
        """See ``Store.publish``."""
        stays = self.options.unused_seconds if unused is None else unused
        manifest = verify(folder, self.options.tokenizer_hash)
        is_damaged = False
        try:
            self._verified(manifest.version)
            if self._keep(manifest.version, stays):
                return manifest.version
        except UnknownVersionError:
            pass
        except SnapshotError:
            is_damaged = True
        self._upload(folder, manifest, is_damaged, stays)
        return manifest.version

    def _upload(self, folder: Path, manifest: Manifest, replace: bool, unused: float) -> None:
        place = self._begin(manifest.version, (folder / MANIFEST).read_bytes())
        try:
            for name in manifest.files:
                self._write(place, name, read_blocks(folder / name, self.options.chunk_bytes))
            for _ in self._read_back(place, manifest):  # may take longer than an untouched upload lives
                self._renew(place)
            self._commit(place, manifest.version, replace, unused)
        except BaseException:
            self._abandon(place)
            raise

    def current(self) -> Current:
        """See ``Store.current``."""
        return self._pointer().current

    def activate(self, version: str, expected: int | None = None) -> Current:
        """See ``Store.activate``."""
        old = self._pointer()
        if expected is not None and expected != old.revision:
            raise self._conflict(expected, old.revision)
        self._verified(version)
        if version == old.version:
            if self._pointer().revision != old.revision:
                raise self._conflict(old.revision, None)
            return old.current
        new = old.forward(version)
        self._compare_and_set(old, new)
        return new.current

    def rollback(self) -> Current:
        """See ``Store.rollback``."""
        old = self._pointer()
        for new in old.ways_back():
            try:
                self._verified(new.version)
                self._compare_and_set(old, new)
            except (UnknownVersionError, SnapshotError):
                continue
            return new.current
        raise UnknownVersionError(f"{self.where} has no sound version before {old.version or 'the first'}")

    def retire(self, version: str) -> None:
        """See ``Store.retire``."""
        check_version(version, self.where)
        is_current = self._retire(version)
        if is_current is None:
            raise self._unknown(version)
        if is_current:
            raise ConflictError(f"{self.where}: version {version} is current; activate another one first")

    def manifest(self, version: str) -> Manifest:
        """See ``Store.manifest``."""
        return self._described(version)[1]

    def fetch(self, version: str, folder: Path) -> Path:
        """See ``Store.fetch``."""
        check_version(version, self.where)
        local = SnapshotFolder(folder)
        target = local.snapshot(version)
        if local.has(version):
            check_tokenizer(read_manifest(target), self.options.tokenizer_hash, str(target))
            return target
        raw, manifest = self._described(version)
        check_tokenizer(manifest, self.options.tokenizer_hash, self._called(version))
        try:
            return local.fetch(version, lambda into: self._bring(raw, manifest, into))
        except OSError as error:
            raise StoreError(f"{target}: the snapshot cannot be written here: {error.strerror}") from error

    def _bring(self, raw: bytes, manifest: Manifest, into: Path) -> None:
        """Write a version's files, verified, and its manifest."""
        place = self._place(manifest.version)
        for name, entry in manifest.files.items():
            self._deliver(place, name, entry, into / name)
        write_blocks(into / MANIFEST, [raw])

    def _deliver(self, place: str, name: str, entry: FileEntry, path: Path) -> None:
        """Write one file of a version to ``path``, verified."""
        write_blocks(path, self._checked(place, name, entry))

    def _verified(self, version: str) -> Manifest:
        manifest = self._described(version)[1]
        check_tokenizer(manifest, self.options.tokenizer_hash, self._called(version))
        for _ in self._read_back(self._place(version), manifest):
            pass
        return manifest

    def _described(self, version: str) -> tuple[bytes, Manifest]:
        check_version(version, self.where)
        raw = self._raw_manifest(self._place(version))
        if raw is None:
            raise self._unknown(version)
        return raw, self._decoded(version, raw)

    def _decoded(self, version: str, raw: bytes) -> Manifest:
        manifest = decode_manifest(raw, self._called(version))
        if manifest.version != version:
            raise DamagedSnapshotError(f"{self._called(version)} has the manifest of version {manifest.version}")
        return manifest

    def _published(self, version: str, raw: bytes, is_current: bool, expires_at: float | None) -> Published:
        """A listed version, whether its manifest can be read or not."""
        try:
            return Published(version, self._decoded(version, raw), is_current, expires_at)
        except SnapshotError as error:
            return Published(version, None, is_current, expires_at, str(error))

    def _read_back(self, place: str, manifest: Manifest) -> Iterator[bytes]:
        """All blocks of a snapshot; the end is only reached if they are what the manifest says."""
        for name, entry in manifest.files.items():
            yield from self._checked(place, name, entry)

    def _checked(self, place: str, name: str, entry: FileEntry) -> Iterator[bytes]:
        return checked(self._blocks(place, name, entry), entry, f"{name} of {place} in {self.where}")

    def _called(self, version: str) -> str:
        return f"{version} in {self.where}"

    def _lost(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self.where} lost the unfinished upload, perhaps by a restart: publish again")

    def _unknown(self, version: str) -> UnknownVersionError:
        return UnknownVersionError(f"{self.where} has no version {version}: it was never published, or it expired")

    def _conflict(self, expected: int, found: int | None) -> ConflictError:
        now = "moved meanwhile" if found is None else f"is at revision {found}"
        return ConflictError(
            f"{self.where}: current was expected at revision {expected}, but {now}; read it and try again"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where})"
