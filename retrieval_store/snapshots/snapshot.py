"""The format of a snapshot: an immutable folder of files, and a manifest with their sizes and hashes.

``retrieval_store.snapshots.snapshot_index`` reads the files, ``retrieval_store.stores`` keeps snapshots. A version is a
hash of the contents: the same text for the same tokenizer has the same version, on whatever machine it is built.
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
    """What the builder of a snapshot says about it."""

    tokenizer_hash: str  # of the tokenizer.json: engine.model.identity.tokenizer_hash
    vocab_size: int
    model: str = ""  # name of the target that scored the texts; "" if none did
    model_hash: str = ""
    sources: tuple[SnapshotInput, ...] = ()
    perplexity: tuple[float, float] | None = None  # the lowest and the highest of the kept texts; None: unrefined
    folded: str = ""  # id of the last live text in it; "": none


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metadata of a snapshot."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    version: str  # 16 hexadecimal digits
    created: float  # seconds since 1970
    about: Description
    window: int  # tokens on which suffixes are ordered: a match and its continuations together
    texts: int
    tokens: int  # of all texts; every one begins a window
    windows: int  # different ones
    contexts: int  # whose continuations are counted in advance
    files: Mapping[str, FileEntry]

    @property
    def bytes(self) -> int:
        """Size of all files but the manifest."""
        return sum(entry.bytes for entry in self.files.values())


def version_of(about: Description, files: Mapping[str, FileEntry]) -> str:
    """The version of a snapshot with these files."""
    digest = hashlib.sha256(f"{FORMAT} {FORMAT_VERSION} {about.tokenizer_hash}\n".encode())
    for name in sorted(files):
        digest.update(f"{name} {files[name].bytes} {files[name].sha256}\n".encode())
    return digest.hexdigest()[:16]


def entry_of(path: Path) -> FileEntry:
    """Size and hash of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(file.tell(), digest.hexdigest())


def is_file_name(name: str) -> bool:
    """Whether a file of a snapshot may be called so: nothing that leads out of its folder."""
    return _FILE_NAME.fullmatch(name) is not None


def encode_manifest(manifest: Manifest) -> bytes:
    """Readable JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(raw: bytes, name: str) -> Manifest:
    """The manifest in ``raw``.

    Args:
        raw: JSON.
        name: of the snapshot, for errors.

    Raises:
        ForeignSnapshotError: it is of another format or format version.
        DamagedSnapshotError: it is no manifest, or contradicts itself.
    """
    try:
        kind = msgspec.json.decode(raw, type=_Kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedSnapshotError(f"snapshot {name}: the manifest does not decode: {error}") from error
    if (kind.format, kind.format_version) != (FORMAT, FORMAT_VERSION):
        raise ForeignSnapshotError(
            f"snapshot {name} has format {kind.format!r} version {kind.format_version}, not {FORMAT!r} version "
            f"{FORMAT_VERSION}: build it again"
        )
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedSnapshotError(f"snapshot {name}: the manifest does not decode: {error}") from error
    if any(not is_file_name(file) or file == MANIFEST for file in manifest.files):
        raise DamagedSnapshotError(f"snapshot {name}: the manifest names files that no snapshot has")
    if manifest.version != version_of(manifest.about, manifest.files):
        raise DamagedSnapshotError(f"snapshot {name}: the manifest's version {manifest.version} is not its contents'")
    return manifest


class _Kind(msgspec.Struct, frozen=True):
    format: str = ""
    format_version: int = 0


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the snapshot in ``folder``.

    Raises:
        ForeignSnapshotError: it is of another format or format version.
        DamagedSnapshotError: there is none, or it does not decode.
    """
    try:
        raw = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise DamagedSnapshotError(f"snapshot {folder}: no readable manifest: {error.strerror}") from error
    return decode_manifest(raw, str(folder))


def check_tokenizer(manifest: Manifest, tokenizer_hash: str, name: str) -> None:
    """Refuse ids of another tokenizer; ``""`` accepts any.

    Raises:
        ForeignSnapshotError: it was made for another tokenizer.
    """
    if tokenizer_hash not in ("", manifest.about.tokenizer_hash):
        raise ForeignSnapshotError(
            f"snapshot {name} (version {manifest.version}) was built for tokenizer {manifest.about.tokenizer_hash}, "
            f"the target's is {tokenizer_hash}: build it again with the target's tokenizer"
        )


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Refuse a snapshot whose files do not have their sizes; quick.

    Raises:
        DamagedSnapshotError: a file is missing or has another size.
    """
    for name, entry in manifest.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else -1
        if size != entry.bytes:
            what = "is missing" if size < 0 else f"has {size} bytes instead of {entry.bytes}"
            raise DamagedSnapshotError(f"snapshot {folder} (version {manifest.version}): {name} {what}")


def verify(folder: Path, tokenizer_hash: str = "") -> Manifest:
    """Read the manifest and check every file against it, hashes included.

    Raises:
        ForeignSnapshotError: another tokenizer, format or format version.
        DamagedSnapshotError: files are missing, truncated or changed.
    """
    manifest = read_manifest(folder)
    check_tokenizer(manifest, tokenizer_hash, str(folder))
    check_sizes(folder, manifest)
    for name, entry in manifest.files.items():
        if entry_of(folder / name) != entry:
            raise DamagedSnapshotError(
                f"snapshot {folder} (version {manifest.version}): {name} does not have the sha256 of the manifest"
            )
    return manifest
