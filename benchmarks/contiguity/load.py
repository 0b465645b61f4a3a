"""A cache under load: a request arrives whenever less than a share of its blocks is in use. Real scheduler, no model.

Prompts have 200 to 3,000 tokens, answers a skewed length with a median of 250; clients bound them by a round number
above it. With ``sharing``, every prompt begins with one of eight system prompts or goes on with a conversation that has
ended, whose blocks may still hold it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.batch_limits import SchedulerOptions
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import Step, StepResult, WorkResult
from engine.target_model.info import TargetInfo
from engine.tree import EMPTY_TREE

FIRST, STOP = 5, 1  # the first id of a text; what ends one
BOUNDS = (256, 1024, 2048)  # what clients ask for as ``max_tokens``
MEDIAN, SPREAD = 5.5, 0.8  # of the natural logarithm of an answer's length

Figures = dict[str, float | None]  # a row of the table


@dataclass(slots=True)
class Counts:
    """Of all steps since the load was steady."""

    steps: int = 0
    occupancy: float = 0.0  # summed over steps
    batches: int = 0  # steps in which any sequence decodes
    slow_batches: int = 0  # those with any scattered sequence
    decoded: int = 0  # sequences that decode, summed over steps
    scattered: int = 0
    blocks_read: int = 0  # of sequences that decode
    blocks_moved: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preempted: int = 0

    def figures(self) -> Figures:
        """What a table shows."""
        return {
            "occupancy": self.occupancy / self.steps,
            "batch": self.decoded / self.batches,
            "scattered": self.scattered / self.decoded,
            "slow_steps": self.slow_batches / self.batches,
            "moved_per_block_read": self.blocks_moved / self.blocks_read,
            "cached": self.cached_tokens / max(1, self.prompt_tokens),
            "preempted": self.preempted,
        }


class SimulatedLoad:
    """Arrivals, and a target that ends every answer where it was decided when the request arrived.

    Args:
        info: of the target.
        occupancy: share of blocks in use below which a request arrives.
        sharing: whether prompts begin alike, and prefixes are cached.
        seed: decides everything.
    """

    def __init__(self, info: TargetInfo, occupancy: float, sharing: bool, seed: int = 0) -> None:
        self._info = info
        self._occupancy = occupancy
        self._sharing = sharing
        self._random = Random(seed)
        self.scheduler = Scheduler(BatchingPolicy(info, SchedulerOptions(max_sequences=512, prefix_cache=sharing)))
        self.counts = Counts()
        self._lengths: dict[int, int] = {}  # of the answers of live sequences
        self._systems = [self._text(self._random.randrange(200, 1500)) for _ in range(8)]
        self._over: deque[list[int]] = deque(maxlen=64)  # texts
        self._n_arrived = self._n_steps = 0

    def warm_up(self, n: int) -> None:
        """``n`` steps that do not count."""
        for _ in self.steps(n):
            pass
        self.counts = Counts()

    def steps(self, n: int) -> Iterator[Step]:
        """``n`` steps; each is answered when the next is asked for."""
        blocks = self.scheduler.blocks
        for _ in range(n):
            while 1 - blocks.n_free / blocks.n_blocks < self._occupancy and not self.scheduler.n_waiting:
                self._arrive()
            moved = blocks.n_moved
            step = self.scheduler.next_step(self._n_steps)
            self.counts.blocks_moved += blocks.n_moved - moved
            assert step is not None, "sequences are alive, and none can go on"
            self._n_steps += 1
            self._count(step)
            yield step
            self._answer(step)

    def _text(self, n: int) -> list[int]:
        return [self._random.randrange(FIRST, self._info.spec.vocab_size) for _ in range(n)]

    def _arrive(self) -> None:
        prompt = self._text(self._random.randrange(200, 3000))
        if self._sharing:
            goes_on = self._over and self._random.random() < 0.5
            known = self._random.choice(self._over if goes_on else self._systems)
            prompt = [*known, *prompt[: self._random.randrange(30, 600)]]
        n = max(8, min(BOUNDS[-1], int(self._random.lognormvariate(MEDIAN, SPREAD))))
        bound = next(bound for bound in BOUNDS if bound >= n)
        if len(prompt) + bound > self._info.max_model_len:
            return
        params = SamplingParams(max_tokens=bound, stop_ids=(STOP,))
        sequence = Sequence.of(self._n_arrived, Request(prompt, params, max_nodes=0))
        self._lengths[sequence.seq] = n
        self._n_arrived += 1
        self.counts.prompt_tokens += len(prompt)
        self.scheduler.submit(sequence)

    def _answer(self, step: Step) -> None:
        sequences = [self.scheduler.find(work.seq) for work in step.work]
        answers = []
        for work, sequence in zip(step.work, sequences, strict=True):
            ends = sequence.n_output + 1 >= self._lengths[work.seq]
            answers.append(WorkResult(work.seq, ([STOP] if ends else self._text(1)) if work.draw else []))
        for commit in self.scheduler.commit(step, StepResult(step.step_id, answers, 0.0), sequences):
            self.scheduler.set_tree(commit.sequence, EMPTY_TREE)
            if commit.sequence.state is SequenceState.FINISHED:
                self._over.append(commit.sequence.tokens)
                self.counts.cached_tokens += commit.sequence.stats.n_cached
                self.counts.preempted += commit.sequence.stats.n_preempted
                del self._lengths[commit.sequence.seq]

    def _count(self, step: Step) -> None:
        counts, blocks = self.counts, self.scheduler.blocks
        tables = [blocks.table(work.seq) for work in step.work if work.tree is not None]
        scattered = sum(table != list(range(table[0], table[0] + len(table))) for table in tables)
        counts.steps += 1
        counts.occupancy += 1 - blocks.n_free / blocks.n_blocks
        counts.batches += bool(tables)
        counts.slow_batches += scattered > 0
        counts.decoded += len(tables)
        counts.scattered += scattered
        counts.blocks_read += sum(map(len, tables))
