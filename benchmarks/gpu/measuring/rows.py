"""Collects the rows of a table, so that one that fails, or comes too late, leaves a note and the others go on."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from benchmarks.gpu.running.results import cell
from benchmarks.gpu.setting import Report, Setting

Found = TypeVar("Found")
Row = Mapping[str, Any]  # by key of the table's columns; what has no column goes to the document alone


@dataclass
class Rows:
    """Rows of one table.

    Args:
        setting: of the check.
        title: of the table.
        columns: key in a row -> heading.
    """

    setting: Setting
    title: str
    columns: Mapping[str, str]
    rows: list[Row] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    def attempt(self, name: str, measure: Callable[[], Sequence[Row]]) -> None:
        """Add the rows of one measurement, which is ``tried``."""
        self.add(*(self.tried(name, measure) or ()))

    def tried(self, name: str, measure: Callable[[], Found]) -> Found | None:
        """What ``measure`` returns; None after an error, which becomes a note, and after the deadline: not called."""
        if self.setting.left <= 0:
            self.late.append(name)
            return None
        with suppress(Exception):  # after a fault of the device this fails as well
            gc.collect()  # the memory of what was measured before must be there again
            if self.setting.on_cuda:
                torch.cuda.empty_cache()
        try:
            return measure()
        except Exception as error:  # of any kind, lack of memory above all: the next one may be smaller
            reason = str(error).partition("\n")[0]
            self.failed.append(f"{name} failed: {type(error).__name__}: {reason}")
            return None

    def add(self, *found: Row) -> None:
        """Print rows, and have the table kept as far as it is: a check that is ended loses no more than a part."""
        for row in found:
            shown = (f"{heading} {cell(row.get(key))}" for key, heading in self.columns.items())
            print("; ".join(shown), flush=True)
        self.rows.extend(found)
        self.setting.keep(self._report((), ()))

    @property
    def notes(self) -> list[str]:
        """What is missing, and why."""
        late = [f"Out of time before: {', '.join(self.late)}."] if self.late else []
        return [*self.failed, *late]

    def report(self, *notes: str, further: Sequence[Rows] = ()) -> Report:
        """The table; ``notes`` say what it means, ``further`` tables follow it.

        Raises:
            RuntimeError: this table has nothing but failures.
        """
        if self.failed and not self.rows:
            raise RuntimeError("; ".join(self.failed))
        return self._report(notes, further)

    def _report(self, notes: Sequence[str], further: Sequence[Rows]) -> Report:
        cells = [[row.get(key) for key in self.columns] for row in self.rows]
        tables = [one._report((), ()) for one in further]
        document = {"rows": [dict(row) for row in self.rows], "failed": self.failed, "late": self.late}
        return Report(self.title, list(self.columns.values()), cells, [*notes, *self.notes], document, tables)
