"""What a look at a machine finds: one line each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from app.reporting.report import columns

OK: Literal["ok"] = "ok"
WARNING: Literal["warning"] = "warning"
PROBLEM: Literal["problem"] = "problem"
Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: of it.
        status: ``problem``: a server would not start, or not serve what is asked; ``warning``: it would, with a loss.
        says: what was found.
        remedy: what to do; "": nothing.
    """

    name: str
    status: Status
    says: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"name": self.name, "status": self.status, "says": self.says, "remedy": self.remedy}


def text(found: Iterable[Finding]) -> str:
    """One line for each."""
    rows = [(one.status, one.name, f"{one.says}; {one.remedy}" if one.remedy else one.says) for one in found]
    return columns(rows, (0, 1, 2))
