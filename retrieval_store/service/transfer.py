"""Copies a snapshot that the service offers to the node of a reader, to the same path as on the service's node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from retrieval_store.service.manifest_feed import CHUNK, OfferedSnapshot
from retrieval_store.snapshots.cache import SnapshotFolder
from retrieval_store.snapshots.files import checked, write_blocks
from retrieval_store.snapshots.snapshot import MANIFEST, check_tokenizer, decode_manifest

Read: TypeAlias = Callable[[str, str, str, int], bytes]  # ``ManifestSource.read``


def fetch_part(read: Read, namespace: str, part: OfferedSnapshot, folder: SnapshotFolder, tokenizer_hash: str) -> Path:
    """Return the folder of the snapshot ``part`` on this node; copy it through the service unless it is there.

    Raises SnapshotError if it does not verify, OSError if the disk is full, and whatever ``read`` raises.
    """

    def blocks(file: str) -> Iterator[bytes]:
        offset = 0
        while block := read(namespace, part.version, file, offset):
            yield block
            if len(block) < CHUNK:
                return
            offset += len(block)

    def bring(into: Path) -> None:
        raw = b"".join(blocks(MANIFEST))
        manifest = decode_manifest(raw, part.version)
        check_tokenizer(manifest, tokenizer_hash, part.version)
        for name, entry in manifest.files.items():
            write_blocks(into / name, checked(blocks(name), entry, f"{name} of version {part.version}"))
        write_blocks(into / MANIFEST, [raw])

    return folder.fetch(part.version, bring)
