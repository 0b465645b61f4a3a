"""Cells of the grid, and what is kept of a run in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from engine.scheduling.drafting import AUTOREGRESSIVE

AUTO, NONE = "auto", AUTOREGRESSIVE
CPU = "cpu"  # the machine that is no simulation
CPU_STREAMS = (1, 4, 16)
SIMULATED_STREAMS = (16, 64, 256)


class Cell(NamedTuple):
    """One combination of what a user may bring."""

    machine: str  # CPU, or the name of a simulated one
    prompts: str  # their kind
    temperature: float
    streams: int  # that decode at the same time

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.machine} {self.prompts} T={self.temperature:g} x{self.streams}"


class CellRecord(msgspec.Struct, frozen=True):
    """One method's run over the streams of a cell: a stream a prompt, all of them submitted at second 0."""

    cell: Cell
    turn: int  # of the cell; methods of one turn have the same prompts and seeds, and ran in alternation
    method: str
    seconds: list[float]  # until a stream had its text
    first_s: list[float]  # until it had its first token
    tokens: int  # of all streams' texts
    forwards: int  # decode steps of all streams that wrote them
    trees: int  # decode steps of all streams, also of those that had their texts
    nodes: int  # of these trees, many of which have none
    host_s: float  # beside the target: drafting, bookkeeping, messages
    wall_s: float
    processor_s: float  # of this process
    digest: str  # of the texts
    failures: int  # exceptions of speculators in the turn; decoding goes on without drafts after one
    load: float  # of the machine, over the minute before


def grid(
    machines: Iterable[str], kinds: Sequence[str], temperatures: Sequence[float], streams: Sequence[int] | None
) -> list[Cell]:
    """All cells, few streams first; ``streams`` None: those that suit the machine."""
    cells = [
        Cell(machine, kind, temperature, n)
        for machine in machines
        for kind in kinds
        for temperature in temperatures
        for n in streams or (CPU_STREAMS if machine == CPU else SIMULATED_STREAMS)
    ]
    return sorted(cells, key=lambda cell: cell.streams)
