"""Checks of ``spectra doctor``, and the result of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report, or one object of its JSON.

    Attributes:
        name: what was checked.
        status: with a ``problem`` a server would not start or not serve the model; with a ``warning`` it would be
            slower or lack something.
        says: what was found.
        remedy: what to do; "": nothing.
    """

    name: str
    status: Status
    says: str
    remedy: str = ""
