"""The format of a snapshot: an immutable folder of files, and a manifest with their sizes and hashes.

A version is a hash of the contents: the same text for the same tokenizer has the same version on every machine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from retrieval_store.errors import DamagedSnapshotError, ForeignSnapshotError

FORMAT = "spectra-snapshot"
FORMAT_VERSION = 2
MANIFEST = "manifest.json"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a snapshot."""

    bytes: int
    sha256: str


class SnapshotInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input of a snapshot."""

    name: str
    sha256: str  # of the input's bytes; of a folder: of the hashes of its files
    texts: int  # read
    kept: int


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a snapshot was built for and from."""

    tokenizer_hash: str  # of the tokenizer.json: engine.model.identity.tokenizer_hash
    vocab_size: int
    model: str = ""  # name of the target model that scored the texts; "": none did
    model_hash: str = ""
    sources: tuple[SnapshotInput, ...] = ()
    perplexity: tuple[float, float] | None = None  # lowest and highest of the kept texts; None: not scored
    folded: str = ""  # id of the last live text in the snapshot; "": none


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metadata of a snapshot."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    version: str  # 16 hexadecimal digits
    created: float  # seconds since 1970
    about: Description
    window: int  # tokens on which suffixes are ordered: a match and its continuations together
    texts: int
    tokens: int  # of all texts; each of them begins a window
    windows: int  # number of different windows
    contexts: int  # number of contexts whose continuations are counted in the snapshot
    files: Mapping[str, FileEntry]

    @property
    def bytes(self) -> int:
        """Size of all files except the manifest."""
        return sum(entry.bytes for entry in self.files.values())


def version_of(about: Description, files: Mapping[str, FileEntry]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {FORMAT_VERSION} {about.tokenizer_hash}\n".encode())
    for name in sorted(files):
        digest.update(f"{name} {files[name].bytes} {files[name].sha256}\n".encode())
    return digest.hexdigest()[:16]


def entry_of(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(file.tell(), digest.hexdigest())


def is_file_name(name: str) -> bool:
    """Return whether a file of a snapshot may have this name, which must not lead out of its folder."""
    return _FILE_NAME.fullmatch(name) is not None


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(raw: bytes, name: str) -> Manifest:
    """Return the manifest in ``raw``; ``name`` is that of the snapshot, for errors.

    Raises:
        ForeignSnapshotError: it has another format or format version.
        DamagedSnapshotError: it does not decode, or contradicts itself.
    """
    try:
        kind = msgspec.json.decode(raw, type=_Kind)
        if (kind.format, kind.format_version) != (FORMAT, FORMAT_VERSION):
            raise ForeignSnapshotError(
                f"snapshot {name} has format {kind.format!r} version {kind.format_version}, not {FORMAT!r} version "
                f"{FORMAT_VERSION}: build it again"
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedSnapshotError(f"snapshot {name}: the manifest does not decode: {error}") from error
    if any(not is_file_name(file) or file == MANIFEST for file in manifest.files):
        raise DamagedSnapshotError(f"snapshot {name}: the manifest names files that a snapshot cannot have")
    if manifest.version != version_of(manifest.about, manifest.files):
        raise DamagedSnapshotError(f"snapshot {name}: its version {manifest.version} does not match its contents")
    return manifest


class _Kind(msgspec.Struct, frozen=True):
    format: str = ""
    format_version: int = 0


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the snapshot in ``folder``; raises what ``decode_manifest`` does."""
    try:
        raw = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise DamagedSnapshotError(f"snapshot {folder}: no readable manifest: {error.strerror}") from error
    return decode_manifest(raw, str(folder))


def check_tokenizer(manifest: Manifest, tokenizer_hash: str, name: str) -> None:
    """Raise ForeignSnapshotError if a snapshot was built for another tokenizer; the hash ``""`` accepts any."""
    if tokenizer_hash not in ("", manifest.about.tokenizer_hash):
        raise ForeignSnapshotError(
            f"snapshot {name} (version {manifest.version}) was built for tokenizer {manifest.about.tokenizer_hash}, "
            f"but the target model has {tokenizer_hash}: build it again with the target model's tokenizer"
        )


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise DamagedSnapshotError if a file is missing or has another size; quick."""
    for name, entry in manifest.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else -1
        if size != entry.bytes:
            what = "is missing" if size < 0 else f"has {size} bytes instead of {entry.bytes}"
            raise DamagedSnapshotError(f"snapshot {folder} (version {manifest.version}): {name} {what}")


def check_files(folder: Path, tokenizer_hash: str = "") -> Manifest:
    """Return the manifest of the snapshot in ``folder``; check its tokenizer and the sizes of its files.

    Raises:
        ForeignSnapshotError: another tokenizer, format or format version.
        DamagedSnapshotError: files are missing or do not have their sizes.
    """
    manifest = read_manifest(folder)
    check_tokenizer(manifest, tokenizer_hash, str(folder))
    check_sizes(folder, manifest)
    return manifest


def verify(folder: Path, tokenizer_hash: str = "") -> Manifest:
    """Check the files of a snapshot as ``check_files`` does, and their hashes; return the manifest."""
    manifest = check_files(folder, tokenizer_hash)
    for name, entry in manifest.files.items():
        if entry_of(folder / name) != entry:
            raise DamagedSnapshotError(
                f"snapshot {folder} (version {manifest.version}): {name} does not have the sha256 of the manifest"
            )
    return manifest
