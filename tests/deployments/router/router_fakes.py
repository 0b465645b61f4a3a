"""Stand-ins for sequences, schedulers and lanes, for tests of single parts of the router."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ray
from ray import cloudpickle

from deployments.router.service_rate import ServiceRate
from deployments.router.speculator_actors import ActorDraftClient, SpeculatorActor
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.sequence import SequenceState
from engine.step import Step, Work
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from tests.support.waiting import LIMIT_S


@dataclass(eq=False)
class FakeSequence:
    seq: int
    priority: int = 0
    n_cached: int = 0
    in_flight: int = 0
    cancelled: bool = False
    state: SequenceState = SequenceState.WAITING
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
    is_enabled: bool = True
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
    def accepts_requests(self) -> bool:
        return self.is_up and self.is_enabled

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


def measured_rate() -> ServiceRate:
    """0.01 s per prompt token, 0.05 s per output token; requests use half of their ``max_tokens``."""
    rate = ServiceRate()
    rate.on_sent(Step(0, [Work(0, 0, [5] * 100)]), 1.0)
    rate.on_result(0, 100, 1, 2.0)
    for n in range(10):
        rate.on_result(0, 0, 2, 2.0 + 0.1 * (n + 1))
    rate.on_finish(SimpleNamespace(n_output=20, request=Request([5], SamplingParams(max_tokens=40))))  # type: ignore[arg-type]
    return rate


class FakeActor:
    """An actor in this process that answers its calls in order, with copies, unless it is dead or hangs."""

    def __init__(self) -> None:
        self.actor: SpeculatorActor | None = SpeculatorActor(SpeculatorOptions())
        self.runs = asyncio.Event()
        self.runs.set()

    def __getattr__(self, name: str) -> Any:
        async def answer(arguments: bytes) -> Any:
            await self.runs.wait()
            if self.actor is None:
                raise ray.exceptions.RayActorError
            return getattr(self.actor, name)(*cloudpickle.loads(arguments))

        def remote(*arguments: Any) -> Any:
            task = asyncio.ensure_future(answer(cloudpickle.dumps(arguments)))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            return task

        return SimpleNamespace(remote=remote)


def client_of(*handles: Any, timeout: float = LIMIT_S) -> ActorDraftClient:
    return ActorDraftClient(handles, SpeculatorPool(), 320, timeout)
