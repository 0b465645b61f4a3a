"""A pipeline on a virtual clock: the real scheduler, stages with given times, no sleep.

Stages work in the order of arrival, a step occupies each of them for
the same time, and an answer needs ``trip`` seconds from the last stage to the next step's arrival at the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from engine.model.spec import ModelSpec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.scheduler import Scheduler, SchedulerOptions
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import Step, StepResult, Work, WorkResult
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo
from engine.tree import EMPTY_TREE

SPEC = ModelSpec("llama", 4, 4, 2, 8, 32, 320, 1 << 20, ("full_attention",) * 4, (2,), "float32", None)
INFO = TargetInfo(SPEC, n_blocks=4096, block_size=64, max_model_len=1 << 20)


@dataclass(slots=True)
class Sent:
    step: Step
    requests: list[Sequence]
    answered: float  # when its answer is back, seconds


@dataclass(slots=True)
class VirtualPipeline:
    scheduler: Scheduler
    seconds: Callable[[Step], float]  # of one stage for a step
    trip: float = 0.0  # seconds from the last stage's end to the next step's arrival
    clock: float = 0.0
    done: list[Sent] = field(default_factory=list)  # answered steps, in order
    requests: list[Sequence] = field(default_factory=list)
    _flying: deque[Sent] = field(default_factory=deque)
    _free: list[float] = field(default_factory=list)  # when each stage is idle again
    _n_steps: int = 0

    def submit(self, prompt: Items[int] = (5,), max_tokens: int = 1 << 16, **fields: object) -> Sequence:
        params = SamplingParams(max_tokens=max_tokens)
        made = Sequence.of(len(self.requests), Request(list(prompt), params, max_nodes=64, **fields))
        self.scheduler.submit(made)
        self.requests.append(made)
        return made

    def run(self, until: float) -> None:
        """Let time pass up to the first answer after ``until``; stops early when there is nothing to do."""
        self._send()
        while self._flying and self._flying[0].answered <= until:
            self.advance()

    def advance(self) -> Sent:
        """The next answer, and what is sent because of it."""
        sent = self._flying.popleft()
        self.clock = sent.answered
        self.done.append(sent)
        answer = StepResult(sent.step.step_id, [self._answer(work) for work in sent.step.work], 0.0)
        for commit in self.scheduler.commit(sent.step, answer, sent.requests):
            if commit.sequence.state is SequenceState.DRAFTING:
                self.scheduler.set_tree(commit.sequence, EMPTY_TREE)
        self._send()
        return sent

    def steps_per_second(self, first: float, last: float) -> float:
        """Sequence-steps answered between two moments, per second."""
        counted = [sent for sent in self.done if first < sent.answered <= last]
        return sum(n_trees(sent.step) for sent in counted) / (last - first)

    def _answer(self, work: Work) -> WorkResult:
        return WorkResult(work.seq, [7] if work.draw else [])

    def _send(self) -> None:
        while (step := self.scheduler.next_step(self._n_steps, len(self._flying))) is not None:
            self._n_steps += 1
            if not self._free:
                self._free = [0.0] * self.scheduler.options.n_micro_batches
            arrived, taken = self.clock, self.seconds(step)
            for stage, free in enumerate(self._free):
                arrived = self._free[stage] = max(arrived, free) + taken
            requests = [self.scheduler.find(work.seq) for work in step.work]
            self._flying.append(Sent(step, requests, arrived + self.trip))

    @property
    def n_in_flight(self) -> int:
        return len(self._flying)


def n_trees(step: Step) -> int:
    return sum(work.tree is not None for work in step.work)


def n_prompt_rows(step: Step) -> int:
    return sum(len(work.tokens) for work in step.work if work.tree is None)


def flat_costs(traverse: Callable[[int], float], batches: Items[int] = (1, 2, 4, 8, 16)) -> StepCosts:
    """Costs of a target that takes ``traverse(batch)`` seconds through all stages, whatever the rows."""
    return StepCosts({batch: ((batch, 65 * batch), (traverse(batch),) * 2) for batch in batches})


def virtual_pipeline(
    n_stages: int,
    stage_seconds: Callable[[int], float],
    *,
    trip: float = 0.0,
    is_measured: bool = True,
    batches: Items[int] = (1, 2, 4, 8, 16),
) -> VirtualPipeline:
    """Stages that take ``stage_seconds(decoding sequences)`` for a step, and a scheduler that has measured them."""
    costs = flat_costs(lambda batch: n_stages * stage_seconds(batch), batches) if is_measured else None
    scheduler = Scheduler(BatchingPolicy(INFO, SchedulerOptions(n_micro_batches=n_stages, prefix_cache=False), costs))
    return VirtualPipeline(scheduler, lambda step: stage_seconds(max(1, n_trees(step))), trip)
