"""What every check is given, and what it hands back.

A check is a module of this room with ``run(setting: Setting) -> Report``; the first line of its docstring is the
question that it answers. It imports the standard library, torch, transformers, numpy, numba and msgspec, and of ours
what imports no more than that: a borrowed machine has nothing else. Triton is imported where it is used, for a CPU's
torch comes without. It imports no other check: the runner counts each one's answer by the sources it depends on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


def _dropped(report: Report) -> None:
    """Outside a run nothing is kept."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how large a check runs."""

    device: torch.device
    dtype: torch.dtype  # of weights and activations
    tiny: bool  # small sizes: whether the check runs at all, in seconds
    out: Path  # existing folder for files beside the report
    deadline: float  # ``time.monotonic()``; a check leaves out what it cannot finish by then, and says so in a note
    keep: Callable[[Report], None] = _dropped  # is given each table as far as it is, after each of its parts

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    @property
    def dtype_name(self) -> str:
        """As torch names it: "bfloat16"."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def on_cuda(self) -> bool:
        """Whether there are streams, events and graphs."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Block until the device has done all that was asked of it."""
        if self.on_cuda:
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found.

    Args:
        title: of the table.
        columns: headings.
        rows: cells, as many as columns; None is shown as a dash, a float with three digits that count.
        notes: sentences below the table: what was not run and why, what a figure means.
        document: the same figures and more for programs, ready for JSON.
        further: tables that follow this one; their documents are kept beside it, by title.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]
    notes: Sequence[str] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    further: Sequence[Report] = ()
