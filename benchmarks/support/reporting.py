"""Markdown tables and result files, the same for every benchmark; computes no figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.reporting.plotting import can_plot
from app.reporting.report import NOTHING, as_line, markdown, write_report


def table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A Markdown table of ``rows``; ``columns`` maps the keys that are shown to their headings."""
    cells = [[NOTHING if one[key] is None else str(one[key]) for key in columns] for one in rows]
    return markdown(list(columns.values()), cells)


@dataclass(frozen=True)
class BenchmarkReport:
    """The result of a run.

    Args:
        document: everything, ready for JSON; the last line of stdout.
        tables: Markdown for people.
        failed: whether the exit status is 1.
        plot: draws pictures into a folder.
    """

    document: Mapping[str, Any]
    tables: str
    failed: bool
    plot: Callable[[Path], None] | None = None

    def publish(self, folder: Path | None) -> int:
        """Print the document, write result.json, tables.md and the plots into ``folder``; returns the exit status."""
        if folder is not None:
            write_report(folder, "result.json", self.document, self.tables)
            if self.plot is not None and can_plot():
                self.plot(folder)
        print(as_line(self.document), flush=True)
        return int(self.failed)
