"""Records on disk, so that a run can be stopped and continued: a line of settings, then a line per turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.never_slower.cells import Cell, CellRecord
from engine.errors import ConfigError

Turn = Mapping[str, CellRecord]  # method -> its run


class CellRecordFile:
    """All records of a file by cell and turn; an incomplete turn is run again.

    Args:
        path: created with its folder if missing; None: nothing is written.
        settings: of the run; they determine the content of records.

    Raises:
        ConfigError: the file holds records of other settings, or has another format.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._turns: dict[Cell, list[Turn]] = {}
        if path is None:
            return
        header = msgspec.json.encode({"settings": settings})
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = path.read_bytes() if path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]  # a killed run may leave part of a line
        first, *lines = whole.split(b"\n")[:-1] or [header]
        if first != header:
            raise ConfigError(f"{path} holds records of other settings, {first.decode(errors='replace')}: use another")
        for number, line in enumerate(lines, start=2):
            try:
                self._keep(msgspec.json.decode(line, type=dict[str, CellRecord]))
            except msgspec.DecodeError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from error
        path.write_bytes(whole or header + b"\n")

    def append(self, turn: Turn) -> None:
        """Add a turn."""
        self._keep(turn)
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(turn) + b"\n")

    def turns(self, cell: Cell) -> list[Turn]:
        """Return the turns of a cell in order."""
        return self._turns.get(cell, [])

    def __iter__(self) -> Iterator[tuple[Cell, list[Turn]]]:
        """Iterate over the cells that have a turn."""
        return iter(self._turns.items())

    def _keep(self, turn: Turn) -> None:
        cell = next(iter(turn.values())).cell
        self._turns.setdefault(cell, []).append(turn)
