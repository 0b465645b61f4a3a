"""Brings a snapshot that the service offers to the node of a reader.

On the service's own node it is there already. Elsewhere one process of the node fetches the files through the service,
verifies them and puts them at the same path; the others wait for it and find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from retrieval_store.errors import DamagedSnapshotError
from retrieval_store.service.cache import NamespaceFolder
from retrieval_store.service.manifest_feed import CHUNK, Part
from retrieval_store.snapshots.snapshot import MANIFEST, decode_manifest, verify
from retrieval_store.stores.transfer import write_blocks

Read: TypeAlias = Callable[[str, str, str, int], bytes]  # ``Source.read``


def bring(read: Read, namespace: str, part: Part, folder: NamespaceFolder, tokenizer_hash: str) -> Path:
    """The snapshot ``part`` of ``namespace`` in ``folder``, this node's place for it.

    Raises:
        SnapshotError: what came does not verify, or is of another tokenizer.
        OSError: the disk is full, or the folder cannot be written.
        Exception: whatever ``read`` raises when the service is away or no longer offers the part.
    """
    place = folder.snapshot(part.version)
    if folder.has(part.version):
        return place
    with folder.lock():
        if folder.has(part.version):
            return place
        folder.discard(part.version)  # half of it is of no use
        scratch = folder.scratch()
        try:
            _copy(read, namespace, part, scratch)
            if verify(scratch, tokenizer_hash).version != part.version:
                raise DamagedSnapshotError(f"version {part.version} came with the manifest of another one")
            return folder.adopt(scratch, part.version)
        finally:
            folder.drop(scratch)


def _copy(read: Read, namespace: str, part: Part, into: Path) -> None:
    into.mkdir()
    raw = b"".join(_chunks(read, namespace, part, MANIFEST))
    manifest = decode_manifest(raw, part.version)
    for name in manifest.files:
        write_blocks(into / name, _chunks(read, namespace, part, name))
    (into / MANIFEST).write_bytes(raw)


def _chunks(read: Read, namespace: str, part: Part, file: str) -> Iterator[bytes]:
    offset = 0
    while True:
        chunk = read(namespace, part.version, file, offset)
        if chunk:
            yield chunk
        if len(chunk) < CHUNK:
            return
        offset += len(chunk)
