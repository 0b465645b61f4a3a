"""One row of a table of ``benchmarks.acceptance``."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import DEFAULT_NODES
from speculators.method import SpeculatorOptions
from speculators.settings import Settings


@dataclass(frozen=True, slots=True)
class AcceptanceRow:
    """A method with its settings."""

    method: str
    options: SpeculatorOptions = field(default_factory=SpeculatorOptions)
    max_nodes: int = DEFAULT_NODES
    warm: bool = False  # prompts of a kind one by one, with state kept from each to the next


def with_settings(*settings: Settings) -> SpeculatorOptions:
    """Return default options with these settings."""
    return SpeculatorOptions().with_settings(*settings)
