"""Checks of ``spectra doctor``, and the result of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report, or one object of its JSON."""

    name: str  # what was checked
    status: Status  # problem: a server would not start or not serve the model; warning: it would lack something
    says: str  # what was found
    remedy: str = ""  # what to do
