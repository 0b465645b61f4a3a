"""Stand-ins for sequences, schedulers and lanes, for tests of single parts of the router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.sequence import State


@dataclass(eq=False)
class FakeSequence:
    seq: int
    priority: int = 0
    n_cached: int = 0
    in_flight: int = 0
    cancelled: bool = False
    state: State = State.WAITING
    n_output: int = 0
    n_prompt: int = 7
    work: float = 1.0  # tokens

    @property
    def request(self) -> Request:
        return Request([5], SamplingParams(), priority=self.priority)


@dataclass
class FakeScheduler:
    sequences: list[Any]

    def withdraw(self, sequence: Any) -> None:
        self.sequences.remove(sequence)

    def adopt(self, sequence: Any) -> None:
        assert sequence not in self.sequences
        self.sequences.append(sequence)


@dataclass(eq=False)
class FakeLane:
    """A lane whose load is the work of its sequences; it is its own ``poison_requests``."""

    name: str = "lane"
    sequences: list[FakeSequence] = field(default_factory=list)
    is_up: bool = True
    is_wanted: bool = True
    n_dispatched: int = 0
    suspected: Sequence[FakeSequence] = ()
    losses: list[Any] = field(default_factory=list)  # of the sequences that were adopted

    @property
    def poison_requests(self) -> FakeLane:
        return self

    @property
    def target(self) -> Any:
        return SimpleNamespace(name=self.name)

    @property
    def takes(self) -> bool:
        return self.is_up and self.is_wanted

    @property
    def load(self) -> float:
        return sum(map(self.work_of, self.sequences))

    def work_of(self, sequence: FakeSequence) -> float:
        return sequence.work

    def is_suspected(self, sequence: FakeSequence) -> bool:
        return sequence in self.suspected

    def adopt(self, sequence: FakeSequence, losses: Any) -> None:
        self.losses.append(losses)
        self.sequences.append(sequence)

    def withdraw(self, sequence: FakeSequence) -> str:
        self.sequences.remove(sequence)
        return f"losses of {sequence.seq}"

    def dispatch(self) -> None:
        self.n_dispatched += 1
