"""The checks in the order that decides most first: 1 to 3 need no kernel of ours, and say which ones to write."""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:  # help must not need torch
    from benchmarks.gpu.setting import Report, Setting


ROOM = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Check:
    """A module of this room."""

    name: str
    minutes: float  # about what it takes on one H200: estimated until it has run there

    @property
    def module(self) -> Path:
        """Its source."""
        return ROOM / f"{self.name}.py"

    @property
    def text(self) -> str:
        """The module's docstring, read without importing it."""
        return ast.get_docstring(ast.parse(self.module.read_text(encoding="utf-8"))) or ""

    @property
    def question(self) -> str:
        """First line of the docstring."""
        return self.text.partition("\n")[0]

    def run(self, setting: Setting) -> Report:
        """Run it in this process."""
        return cast("Report", importlib.import_module(f"benchmarks.gpu.{self.name}").run(setting))


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("probe", 1),
        Check("invariance", 4),
        Check("today", 4),
        Check("counts", 1),
        Check("step", 5),
        Check("texts", 6),
        Check("kernels", 6),
        Check("exact", 8),
        Check("drafts", 3),
        Check("seventy", 6),
        Check("load", 3),
        Check("train", 8),
    )
}
