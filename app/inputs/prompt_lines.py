"""Reads the records of a prompt file: JSON lines, or the rows of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.errors import ConfigError, require_extra

T = TypeVar("T")

PARQUET = ".parquet"


def records(path: Path, form: type[T]) -> Iterator[tuple[str, T]]:
    """Yield each record, a msgspec struct of type ``form``, with its place for messages: "line 3", "row 3".

    Raises ConfigError, which names the place, if the file cannot be read or a record has another form.
    """
    for where, raw in _rows(path) if path.suffix == PARQUET else _lines(path):
        try:
            record = msgspec.json.decode(raw, type=form) if isinstance(raw, str) else msgspec.convert(raw, form)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"--prompts {path}, {where}: {error}") from error
        yield where, record


def read_text(path: Path, flag: str) -> str:
    """Return the text of a file in UTF-8, without a byte order mark; errors name ``flag``."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {path} is not UTF-8: {error}") from error


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    # Not ``splitlines``: it also splits at characters that JSON strings may contain.
    for number, line in enumerate(read_text(path, "--prompts").split("\n"), start=1):
        if line.strip():
            yield f"line {number}", line


def _rows(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield rows without the columns that have no value."""
    require_extra("parquet", f"--prompts {path}")
    import duckdb

    try:
        with duckdb.connect() as session:
            table = session.read_parquet(str(path))
            columns, rows = table.columns, table.fetchall()
    except duckdb.Error as error:
        raise ConfigError(f"--prompts {path} cannot be read: {str(error).splitlines()[0]}") from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", {name: value for name, value in zip(columns, row, strict=True) if value is not None}
