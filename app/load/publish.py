"""Writes a run down: document, tables, records and plots as files; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from app.load.records import Record
from app.load.slo import Slo
from engine.errors import ConfigError


def as_line(document: Mapping[str, Any]) -> str:
    """One line of JSON."""
    return msgspec.json.encode(document).decode()


def check_writable(folder: Path | None, file: Path | None) -> None:
    """Make the folders now, before a long run that could not be written down.

    Raises:
        ConfigError: they cannot be made.
    """
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    except OSError as error:
        raise ConfigError(f"{'--json' if file else '--out'}: {error}") from error


def publish(
    document: Mapping[str, Any],
    tables: str,
    records: Sequence[Record],
    slo: Slo | None,
    folder: Path | None,
    file: Path | None,
) -> None:
    """Write what was asked for: ``file`` the document; ``folder`` everything."""
    whole = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    if file is not None:
        file.write_bytes(whole)
    if folder is None:
        return
    from app.load.plots import plots  # matplotlib loads slowly

    (folder / "load.json").write_bytes(whole)
    (folder / "tables.md").write_text(tables + "\n")
    write_records(records, folder / "records.jsonl")
    plots(records, folder, slo)


def write_records(records: Sequence[Record], path: Path) -> None:
    """A line per request, with its text and the time of every chunk; seconds count from the first intended arrival."""
    zero = min((record.intended for record in records), default=0.0)
    with path.open("wb") as lines:
        for record in records:
            lines.write(msgspec.json.encode(_shifted(record, zero)) + b"\n")


def _shifted(record: Record, zero: float) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    for name in ("intended", "sent", "ended"):
        fields[name] = round(fields[name] - zero, 6)
    fields["chunks"] = [round(at - zero, 6) for at in fields["chunks"]]
    for found in fields["breaks"]:
        found["at"] = round(found["at"] - zero, 6)
    return fields
