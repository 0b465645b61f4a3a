"""The cells of the grid, their prompts, and the record of a run in one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from app.inputs.prompts import encode_chat
from app.inputs.tokenizers import load_tokenizer
from benchmarks.support.prompt_sets import halved, questions
from engine.scheduling.drafting import AUTOREGRESSIVE

RANDOM = "random"
KINDS = (RANDOM, "chat", "code", "summarization", "edits")
LONGEST = 1500  # characters of a prompt: reading thousands of tokens would hide the cost of decoding
RANDOM_TOKENS = 96  # of a prompt of random tokens
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

    seconds: list[float]  # of each text, from its submission to its last token
    first_s: list[float]  # of each text, from its submission to its first token
    tokens: int  # of all measured texts
    forwards: int  # decode steps of the streams that wrote them
    trees: int  # decode steps of all streams, also of those that wrote fillers
    nodes: int  # of these trees, many of which have none
    host_s: float  # outside the target: drafting, scheduling, messages
    digest: str  # of the measured texts
    failures: int  # exceptions of speculators in the turn; decoding continues without drafts after one


Turn: TypeAlias = Mapping[str, CellRecord]  # method -> its run


class CellTurn(msgspec.Struct, frozen=True):
    """The runs of one turn: methods had the same prompts and seeds, and ran in alternation."""

    cell: Cell
    number: int  # of the turn, from 0 in each cell
    runs: dict[str, CellRecord]  # by method

    @property
    def key(self) -> tuple[Cell, int]:
        return self.cell, self.number


def turns_of(cell: Cell, records: Iterable[CellTurn]) -> list[Turn]:
    """Return the turns of a cell in order."""
    return [record.runs for record in records if record.cell == cell]


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


def prompts_of(
    kinds: Sequence[str], folder: Path, model: Path, most: int, half: int | None
) -> dict[str, Sequence[list[int]]]:
    """Return the prompts by kind, as ids of the model's tokenizer.

    Args:
        kinds: of ``KINDS``.
        folder: with the files of the kinds.
        model: checkpoint directory.
        most: prompts of a kind.
        half: 0 or 1: only that half of each kind; None: all of it.

    Raises:
        ConfigError: a prompt file is missing, or the model has no chat template.
    """
    tokenizer = load_tokenizer(model)
    found: dict[str, Sequence[list[int]]] = {}
    for kind, some in questions(folder, most, [kind for kind in kinds if kind != RANDOM], half).items():
        chats = ([{"role": "user", "content": question.text[:LONGEST]}] for question in some)
        found[kind] = [encode_chat(tokenizer, chat) for chat in chats]
    if RANDOM in kinds:
        chance = random.Random(0)
        prompts = [[chance.randrange(5, len(tokenizer)) for _ in range(RANDOM_TOKENS)] for _ in range(2 * most)]
        found[RANDOM] = halved(prompts, half)[:most]
    return found
