"""Text and files of a report: tables, JSON documents, progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import ConfigError

NOTHING = "-"  # in place of an unknown figure


def number(value: float | None, digits: int = 2) -> str:
    """``value`` with ``digits`` decimals, or ``NOTHING`` in place of None."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share such as 0.5 as ``50.0%``, or ``NOTHING`` in place of None."""
    return NOTHING if value is None else f"{value:.1%}"


def markdown(head: Sequence[str], body: Sequence[Sequence[str]], n_names: int = 1) -> str:
    """A Markdown table with padded columns: the first ``n_names`` hold names, the others figures."""
    left = range(n_names)
    widths = _widths([head, *body])
    rules = ["-" * (width + 2) if i in left else "-" * (width + 1) + ":" for i, width in enumerate(widths)]
    lines = [f"| {' | '.join(_padded(row, widths, left))} |" for row in (head, *body)]
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])


def columns(rows: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Rows as columns two spaces apart; the columns in ``left`` are flush left, the others flush right."""
    widths = _widths(rows)
    return "\n".join("  ".join(_padded(row, widths, left)).rstrip() for row in rows)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*rows, strict=True)]


def _padded(row: Sequence[str], widths: Sequence[int], left: Collection[int]) -> list[str]:
    pairs = enumerate(zip(row, widths, strict=True))
    return [cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in pairs]


def as_line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False)


def write_document(document: Mapping[str, Any], path: Path) -> None:
    """Write a document as indented JSON."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_lines(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(as_line(record) + "\n" for record in records)


def write_report(folder: Path, name: str, document: Mapping[str, Any], tables: str) -> None:
    """Write the document as ``name`` and ``tables.md`` to ``folder``, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md").write_text(tables + "\n", encoding="utf-8")
    write_document(document, folder / name)


def check_writable(folder: Path | None, file: Path | None) -> None:
    """Make the folders of ``--out`` and ``--json``; raises ConfigError now, not at the end of a long run."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    except OSError as error:
        raise ConfigError(f"{'--json' if file else '--out'}: {error}") from error


def bar(what: str | None, total: int | None, unit: str, **options: Any) -> Any:
    """A progress bar of ``tqdm`` on stderr; without a ``total`` it shows no estimate of the time left."""
    from tqdm import tqdm  # most commands show no bar

    return tqdm(total=total, desc=what, unit=unit, file=sys.stderr, **options)
