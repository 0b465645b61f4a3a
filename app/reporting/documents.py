"""JSON documents and JSON lines: what programs read of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.errors import ConfigError


def as_line(document: Mapping[str, Any]) -> str:
    """A document as one line of JSON."""
    return json.dumps(document, ensure_ascii=False)


def write_document(document: Mapping[str, Any], path: Path) -> None:
    """Write a document as indented JSON."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_lines(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write one line of JSON per record."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(as_line(record) + "\n" for record in records)


def check_writable(folder: Path | None, file: Path | None) -> None:
    """Make the folders before a long run whose report could not be written.

    Raises:
        ConfigError: a folder or the file cannot be made.
    """
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    except OSError as error:
        raise ConfigError(f"{'--json' if file else '--out'}: {error}") from error
