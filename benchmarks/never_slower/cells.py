"""The cells of the grid, and the record of a run in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from engine.scheduling.drafting import AUTOREGRESSIVE

AUTO, NONE = "auto", AUTOREGRESSIVE
CPU = "cpu"  # the machine that is not simulated
CPU_STREAMS = (1, 4, 16)
SIMULATED_STREAMS = (16, 64, 256)


CPU_TEXTS, SIMULATED_TEXTS = 4, 32  # measured texts of a turn, at least
MOST_CPU_TEXTS, MOST_SIMULATED_TEXTS = 96, 384  # of a cell, over all turns


class Cell(NamedTuple):
    """One combination of machine, prompts and load."""

    machine: str  # CPU, or the name of a simulated one
    prompts: str  # their kind
    temperature: float
    streams: int  # that decode at the same time

    @property
    def label(self) -> str:
        """Name in tables and messages."""
        return f"{self.machine} {self.prompts} T={self.temperature:g} x{self.streams}"

    @property
    def texts_of_turn(self) -> int:
        """Measured texts of a turn."""
        return max(self.streams, CPU_TEXTS if self.machine == CPU else SIMULATED_TEXTS)

    @property
    def most_turns(self) -> int:
        """Turns after which no more are run; one with the largest number of streams of a simulated machine."""
        if self.machine != CPU and self.streams >= SIMULATED_STREAMS[-1]:
            return 1
        return max(2, (MOST_CPU_TEXTS if self.machine == CPU else MOST_SIMULATED_TEXTS) // self.texts_of_turn)


class CellRecord(msgspec.Struct, frozen=True):
    """One method's run over the measured texts of a turn."""

    cell: Cell
    turn: int  # of the cell; methods of one turn have the same prompts and seeds, and ran in alternation
    method: str
    seconds: list[float]  # of each text, from its submission to its last token
    first_s: list[float]  # of each text, from its submission to its first token
    tokens: int  # of all measured texts
    forwards: int  # decode steps of the streams that wrote them
    trees: int  # decode steps of all streams, also of those that wrote fillers
    nodes: int  # of these trees, many of which have none
    host_s: float  # outside the target: drafting, scheduling, messages
    wall_s: float
    processor_s: float  # of this process
    digest: str  # of the measured texts
    failures: int  # exceptions of speculators in the turn; decoding continues without drafts after one
    load: float  # of the machine, over the minute before


def grid(
    machines: Iterable[str], kinds: Sequence[str], temperatures: Sequence[float], streams: Sequence[int] | None
) -> list[Cell]:
    """Return all cells, few streams first; ``streams`` None: those that suit the machine."""
    cells = [
        Cell(machine, kind, temperature, n)
        for machine in machines
        for kind in kinds
        for temperature in temperatures
        for n in streams or (CPU_STREAMS if machine == CPU else SIMULATED_STREAMS)
    ]
    return sorted(cells, key=lambda cell: cell.streams)
