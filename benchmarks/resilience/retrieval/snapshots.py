"""The snapshots that are published, built from the standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_writer import write_snapshot

FOREIGN = "f" * 32  # hash of no tokenizer
SKIPPED = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}


@dataclass(frozen=True)
class Snapshots:
    """Folders of what is published, and the versions in them."""

    folder: Path
    tokenizer_hash: str
    versions: dict[str, str]  # name: version
    tokens: dict[str, int]  # name: size


def build_snapshots(model: Path, folder: Path, small: int, large: int) -> Snapshots:
    """Snapshots ``A`` (``small`` tokens of the standard library), ``B`` (``large``), ``damaged`` and ``foreign``."""
    from app.inputs.tokenizers import load_tokenizer
    from engine.model.identity import tokenizer_hash

    tokenizer, key = load_tokenizer(model), tokenizer_hash(model)
    texts = list(_tokenised(tokenizer, large))
    parts = {"A": (texts, small, key), "B": (texts, large, key)}
    parts |= {"damaged": (texts[1:], small, key), "foreign": (texts[2:], small, FOREIGN)}
    versions, tokens = {}, {}
    for name, (some, size, about) in parts.items():
        described = Description(tokenizer_hash=about, vocab_size=len(tokenizer))
        manifest = write_snapshot(_first(some, size), folder / name, described)
        versions[name], tokens[name] = manifest.version, manifest.tokens
    return Snapshots(folder, key, versions, tokens)


def _tokenised(tokenizer: Any, limit: int) -> Iterator[list[int]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        if SKIPPED.isdisjoint(path.relative_to(root).parts) and limit > 0:
            ids = tokenizer.backend_tokenizer.encode(path.read_text(errors="replace"), add_special_tokens=False).ids
            limit -= len(ids)
            yield ids


def _first(texts: Sequence[list[int]], size: int) -> Iterator[list[int]]:
    for text in texts:
        if size <= 0:
            return
        if text:
            yield text[:size]
        size -= len(text)
