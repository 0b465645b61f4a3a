"""A store of snapshots and live texts: immutable versions, one ``current`` pointer with a history, and a log.

``Store`` has what all kinds of stores share: the order of the steps, which ``StoreSteps`` declares.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval_store.errors import (
    ConflictError,
    DamagedSnapshotError,
    SnapshotError,
    StoreError,
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
from retrieval_store.stores.live_text import check_limit, decode_tokens, encode_tokens, parse_id
from retrieval_store.stores.records import Current, LiveText, Move, Published
from retrieval_store.stores.steps import StoreSteps


class Store(StoreSteps):
    """Snapshots and live texts of one namespace.

    Calls block, and raise ``StoreUnavailableError`` when the store cannot be reached. A store belongs to one thread
    unless its class says otherwise.
    """

    def publish(self, folder: Path, unused: float | None = None) -> str:
        """Upload the snapshot in ``folder`` and return its version; ``current`` does not move.

        The upload is read back and verified before ``versions`` lists it. A version that is not activated within
        ``unused`` seconds (None: as in the options) expires, so a publisher that dies leaves nothing for good.
        Publishing a version that exists verifies it, puts off its expiry, and replaces it only if it is damaged.
        Publishers may run at the same time.

        Raises SnapshotError if the snapshot in ``folder`` is damaged or foreign.
        """
        seconds = self.options.unused_seconds if unused is None else unused
        manifest = verify(folder, self.options.tokenizer_hash)
        is_damaged = False
        try:
            self._verified(manifest.version)
            if self._keep(manifest.version, seconds):
                return manifest.version
        except UnknownVersionError:
            pass
        except SnapshotError:
            is_damaged = True
        self._upload(folder, manifest, is_damaged, seconds)
        return manifest.version

    def _upload(self, folder: Path, manifest: Manifest, replace: bool, unused: float) -> None:
        place = self._begin((folder / MANIFEST).read_bytes())
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
        """Return where ``current`` points."""
        return self._pointer().current

    def activate(self, version: str, expected: int | None = None) -> Current:
        """Verify a version and point ``current`` at it; the version before expires after the grace period.

        Nothing moves if ``current`` points at the version already. ``expected`` is the revision that ``current`` must
        have; None: the one that it has when the call begins.

        Raises:
            UnknownVersionError: there is no such version.
            DamagedSnapshotError: it does not verify.
            ConflictError: ``current`` has another revision, or moved during the call.
        """
        old = self._pointer()
        if expected is not None and expected != old.revision:
            raise self._conflict(expected, old.revision)
        self._verified(version)
        if version == old.version:
            if self._pointer().revision != old.revision:
                raise self._conflict(old.revision)
            return old.current
        new = old.forward(version)
        self._compare_and_set(old, new)
        return new.current

    def rollback(self) -> Current:
        """Move ``current`` to the latest earlier version that still exists and verifies.

        A rollback is a move of its own; rolling back twice goes back twice.

        Raises:
            UnknownVersionError: there is no such version.
            ConflictError: ``current`` moved during the call.
        """
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
        """Let a version expire after the grace period, for example one that lost a race to become current.

        Raises:
            UnknownVersionError: there is no such version.
            ConflictError: it is current.
        """
        check_version(version, self.where)
        is_current = self._retire(version)
        if is_current is None:
            raise self._unknown(version)
        if is_current:
            raise ConflictError(f"{self.where}: version {version} is current; activate another one first")

    def history(self, limit: int = 100) -> list[Move]:
        """Return the last ``limit`` moves of ``current``, the latest last."""
        check_limit(limit)
        return self._history(limit)

    @abstractmethod
    def versions(self) -> list[Published]:
        """Return all versions that have not expired, the newest last.

        A version whose manifest cannot be read, such as one of another format version, is listed with the reason.
        """

    def manifest(self, version: str) -> Manifest:
        """Return the manifest of a version; raise UnknownVersionError if there is none."""
        return self._described(version)[1]

    def fetch(self, version: str, folder: Path) -> Path:
        """Copy a version to ``folder/version``, verified, unless it is there already; return that path.

        Processes may share ``folder``: none of them sees half a snapshot.

        Raises:
            UnknownVersionError: there is no such version.
            DamagedSnapshotError: the version does not verify; ``folder`` is left without it.
        """
        check_version(version, self.where)
        local = SnapshotFolder(folder)
        target = local.snapshot(version)
        if local.has(version):
            check_tokenizer(read_manifest(target), self.options.tokenizer_hash, str(target))
            return target
        raw, manifest = self._described(version)
        check_tokenizer(manifest, self.options.tokenizer_hash, self._called(version))

        def bring(into: Path) -> None:
            for name, entry in manifest.files.items():
                self._deliver(self._place(version), name, entry, into / name)
            write_blocks(into / MANIFEST, [raw])

        try:
            return local.fetch(version, bring)
        except OSError as error:
            raise StoreError(f"{target}: the snapshot cannot be written here: {error.strerror}") from error

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Wait until ``current`` may have moved or a text was appended, for at most ``timeout`` seconds.

        Returns False if nothing was heard. This is a hint only: callers must poll as well. Raises nothing: it returns
        False while the store is away, and True once it is back. Another thread than that of the other calls may wait.
        """

    def append(self, texts: Sequence[Sequence[int]], limit: int) -> None:
        """Append to the log of live texts, and keep about the last ``limit`` entries.

        Raises ValueError if a token id is negative or above int32.
        """
        check_limit(limit)
        if encoded := [encode_tokens(text) for text in texts]:
            self._append(encoded, limit)

    def entries(self, after: str = "", limit: int = 1000) -> list[LiveText]:
        """Return at most ``limit`` entries of the log, from the first one after the id ``after`` ("": from the start).

        An entry that does not decode has no tokens, so that readers get past it; a warning names the first of them.
        Raises StoreError if ``after`` is not an id.
        """
        check_limit(limit)
        found = self._entries(parse_id(after, self.where), limit)
        return [LiveText(name, decode_tokens(raw, name, self.where)) for name, raw in found]

    def trim(self, upto: str) -> None:
        """Remove the entries of the log up to and including the one with this id."""
        self._trim(parse_id(upto, self.where))

    @abstractmethod
    def close(self) -> None:
        """Close connections and end threads; closing twice does no harm."""

    # -- for the kinds of stores -----------------------------------------------------------------------------------

    def _deliver(self, place: str, name: str, entry: FileEntry, path: Path) -> None:
        """Write one file of a version to ``path``, verified."""
        write_blocks(path, self._checked(place, name, entry))

    def _verified(self, version: str) -> None:
        manifest = self._described(version)[1]
        check_tokenizer(manifest, self.options.tokenizer_hash, self._called(version))
        for _ in self._read_back(self._place(version), manifest):
            pass

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
        try:
            return Published(version, self._decoded(version, raw), is_current, expires_at)
        except SnapshotError as error:
            return Published(version, None, is_current, expires_at, str(error))

    def _read_back(self, place: str, manifest: Manifest) -> Iterator[bytes]:
        """Return all blocks of a snapshot; they end with an error if they are not what the manifest says."""
        for name, entry in manifest.files.items():
            yield from self._checked(place, name, entry)

    def _checked(self, place: str, name: str, entry: FileEntry) -> Iterator[bytes]:
        return checked(self._blocks(place, name, entry), entry, f"{name} of {place} in {self.where}")
