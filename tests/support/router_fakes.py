"""Stand-ins for sequences, schedulers and lanes, for tests of the router's parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.sequence import State


@dataclass(eq=False)
class FakeSequence:
    """What the router's parts read of a sequence."""

    seq: int
    priority: int = 0
    n_cached: int = 0
    in_flight: int = 0
    cancelled: bool = False
    state: State = State.WAITING
    n_output: int = 0
    work: float = 1.0  # tokens

    @property
    def request(self) -> Request:
        return Request([5], SamplingParams(), priority=self.priority)


@dataclass
class FakeScheduler:
    """Sequences by whether the scheduler knows them."""

    sequences: list[Any]

    def withdraw(self, sequence: Any) -> None:
        self.sequences.remove(sequence)

    def adopt(self, sequence: Any) -> None:
        assert sequence not in self.sequences
        self.sequences.append(sequence)


@dataclass
class FakePoison:
    """Which sequences of a lane are suspected, and what it has adopted."""

    lane: FakeLane
    suspected: list[Any] = field(default_factory=list)
    adopted: list[tuple[Any, Any]] = field(default_factory=list)

    def is_suspected(self, sequence: Any) -> bool:
        return sequence in self.suspected

    def adopt(self, sequence: Any, losses: Any) -> None:
        self.adopted.append((sequence, losses))
        self.lane.sequences.append(sequence)


class FakeLane:
    """A lane whose load is the work of its sequences."""

    def __init__(self, name: str = "lane", sequences: Sequence[FakeSequence] = (), is_up: bool = True) -> None:
        self.target = FakeTarget(name)
        self.sequences = list(sequences)
        self.is_up = is_up
        self.is_wanted = True
        self.n_dispatched = 0
        self.poison_requests = FakePoison(self)

    @property
    def takes(self) -> bool:
        return self.is_up and self.is_wanted

    @property
    def load(self) -> float:
        return sum(map(self.work_of, self.sequences))

    def work_of(self, sequence: FakeSequence) -> float:
        return sequence.work

    def withdraw(self, sequence: FakeSequence) -> str:
        self.sequences.remove(sequence)
        return f"losses of {sequence.seq}"

    def dispatch(self) -> None:
        self.n_dispatched += 1


@dataclass
class FakeTarget:
    name: str
