"""What ``spectra corpus`` says of stores, as tests read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrieval_store.snapshots.snapshot import read_manifest

TEXTS = [[1, 2, 3, 4, 5], [1, 2, 3, 6]]
PASSWORD = "open-sesame"
Run = Callable[..., tuple[int, str, str]]


def url_of(store: str) -> str:
    """The store as messages name it."""
    return store if "://" in store else Path(store).as_uri()


def versions_of(snapshots: list[Path]) -> list[str]:
    return [read_manifest(folder).version for folder in snapshots]


def listed(corpus: Run, *flags: object) -> dict[str, Any]:
    status, out, _ = corpus("list", "--json", *flags)
    assert status == 0
    document: dict[str, Any] = json.loads(out)
    return document
