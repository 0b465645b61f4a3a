"""Snapshots with random contents: stores do not care what the files hold."""

from __future__ import annotations

import random
import time
from pathlib import Path

from retrieval_store.snapshots.snapshot import MANIFEST, Description, Manifest, encode_manifest, entry_of, version_of

TOKENIZER = "tokenizer-of-the-target"
FILES = ("tokens.bin", "index.bin", "empty.bin")


def make_snapshot(folder: Path, seed: int, size: int = 3000) -> str:
    """Write a snapshot of three files, the last one empty; returns its version."""
    folder.mkdir(parents=True)
    noise = random.Random(seed)
    for name, length in zip(FILES, (size, size // 3 + 1, 0), strict=True):
        (folder / name).write_bytes(noise.randbytes(length))
    about = Description(tokenizer_hash=TOKENIZER, vocab_size=1000)
    files = {name: entry_of(folder / name) for name in FILES}
    figures = {"window": 8, "texts": 1, "tokens": size, "windows": size, "contexts": 1}
    manifest = Manifest(version=version_of(about, files), created=time.time(), about=about, files=files, **figures)
    (folder / MANIFEST).write_bytes(encode_manifest(manifest))
    return manifest.version


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
