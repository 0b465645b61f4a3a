"""A stage without layers: it sleeps for the time in its profile, and the last stage writes known answers.

Its cache has a row per token as in a real stage, but holds the token itself. Prompts are read from the blocks of the
scheduler, so wrong blocks show as wrong text. One thread runs it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.events import TokenLogprob
from engine.kv.arena import BlockTable
from engine.simulated.answers import RecordedAnswers, SimulatedAnswer
from engine.simulated.profile import PipelineProfile
from engine.simulated.timing import DeadlineSleep, Lateness, SimulatedLink
from engine.stage.artefacts import AttentionRows, CapturedStep
from engine.stage.base import Activations, Computing
from engine.stage.packing import compaction, copies, row_tokens
from engine.step import SequenceStart, Step, Work, WorkResult
from engine.tree import EMPTY_TREE
from engine.verify.rules import walk_text


@dataclass(slots=True)
class _StageSequence:
    """State of a sequence."""

    start: SequenceStart
    table: BlockTable
    answer: SimulatedAnswer | None = None  # last stage, from the first drawn token on


class _Sleeping:
    """A step that is over at ``due`` (``time.perf_counter``). Implements ``engine.stage.base.Computing``."""

    def __init__(self, sleep: DeadlineSleep, began: float, due: float) -> None:
        self._sleep, self._began, self._due = sleep, began, due

    def wait(self) -> float:
        """Sleep until the step's time is over; returns the seconds of the step, lateness of the sleep included."""
        self._sleep.until(self._due)
        return time.perf_counter() - self._began


class SimulatedStage:
    """Implements ``engine.stage.base.StageLike``.

    It reads back tokens only: the scheduler refuses methods that need more.

    Args:
        profile: seconds of steps and links.
        answers: the texts that the last stage writes; None on every other stage.
        n_blocks: KV blocks.
        block_size: tokens per block.
    """

    def __init__(
        self, profile: PipelineProfile, answers: RecordedAnswers | None, n_blocks: int, block_size: int
    ) -> None:
        self._profile = profile
        self._answers = answers
        self._block_size = block_size
        self._cache = np.zeros(n_blocks * block_size if answers is not None else 0, np.int32)
        self._sequences: dict[int, _StageSequence] = {}
        self._results: list[WorkResult] = []
        self._sleep = DeadlineSleep()
        self._link = SimulatedLink(profile)
        self._computing = _Sleeping(self._sleep, 0.0, 0.0)
        self._due = 0.0  # ``time.perf_counter`` when the last step is over
        self.busy_s = 0.0  # seconds slept by the profile, over all steps

    @property
    def n_sequences(self) -> int:
        """Sequences the stage holds state of."""
        return len(self._sequences)

    @property
    def lateness(self) -> Lateness:
        """Lateness of all sleeps."""
        return self._sleep.lateness

    def reset(self) -> None:
        """Remove every sequence."""
        self._sequences.clear()
        self._results = []

    def request_ids(self, step: Step) -> list[str]:
        """See ``StageLike.request_ids``."""
        return [known.start.request_id for work in step.work if (known := self._sequences.get(work.seq)) is not None]

    def outline(self, step: Step) -> torch.Tensor | None:
        """The time of arrival, for any number of rows."""
        return torch.empty(1, 1, 2, device="meta") if step.work else None

    def admit(self, step: Step) -> None:
        """Remove the sequences that ended, move and add sequences, and extend block tables."""
        for seq in step.ends:
            self._sequences.pop(seq, None)
        for work in step.work:
            if work.moved and work.seq in self._sequences:
                self._move(self._sequences[work.seq].table, work.new_blocks)
        for start in step.starts:
            self._sequences[start.seq] = _StageSequence(start, BlockTable(self._block_size))
        for work in step.work:
            if work.seq in self._sequences and not work.moved:
                self._sequences[work.seq].table.extend(work.new_blocks)

    def prepare(self, step: Step) -> None:
        """Do nothing: there is nothing to pack."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        """Begin the step once the link has delivered its input and the previous step is over.

        Returns the time of arrival at the next stage. The host's work counts as part of the step's time, as on a GPU.
        """
        began = max(self._link.arrival(incoming, time.perf_counter()), self._due)
        self._results = []
        if self._answers is not None:
            self._store(step)
            self._results = [self._answer(work) for work in step.work]
        seconds = self._profile.work_seconds(step.work, self._answers is not None)
        outgoing = self._link.departure(began + seconds, sum(len(row_tokens(work)) for work in step.work))
        self._due = began + seconds
        self._computing = _Sleeping(self._sleep, began, self._due)
        self.busy_s += seconds
        return outgoing

    def computing(self) -> Computing:
        """The last step, which ends after ``forward`` has returned, as on a GPU."""
        return self._computing

    def verify(self, activations: Activations) -> list[WorkResult]:
        """See ``StageLike.verify``: walks every tree along its answer."""
        self._computing.wait()
        return self._results

    def captured(self) -> CapturedStep | None:
        """None: a simulated stage has no attention."""
        return None

    def attention(self, results: Sequence[WorkResult]) -> AttentionRows:
        """Empty: a simulated stage has no attention."""
        return {}

    def _move(self, table: BlockTable, blocks: list[int]) -> None:
        if self._answers is not None:
            for run in table.runs_to(blocks):
                self._cache[run.target : run.target + run.n] = self._cache[run.source : run.source + run.n]
        table.replace(blocks)

    def _store(self, step: Step) -> None:
        """Copy, compact and write tokens, as a real stage does with keys and values."""
        works = step.work
        tables = {work.seq: self._sequences[work.seq].table for work in works}
        for source, target in (copies(step.starts, tables, self._block_size), compaction(works, tables)):
            if source:
                self._cache[target] = self._cache[source]
        for work in works:
            table, tokens = tables[work.seq], row_tokens(work)
            self._cache[_rows(table, work.n_cached, work.n_cached + len(tokens))] = tokens

    def _answer(self, work: Work) -> WorkResult:
        of_prompt = [TokenLogprob(token, 0.0) for token in work.logprobs_of] or None
        if not work.draw:
            return WorkResult(work.seq, prompt_logprobs=of_prompt)
        sequence = self._sequences[work.seq]
        if sequence.answer is None:
            sequence.answer = self._find(sequence)
        written = work.n_cached + len(work.tokens) - sequence.start.n_prompt
        tree = EMPTY_TREE if work.tree is None else work.tree
        future = sequence.answer.part(written, min(work.max_new, len(tree) + 1))
        tokens, accepted = walk_text(tree, _until_stop(future, sequence))
        certain = [TokenLogprob(token, 0.0) for token in tokens] if sequence.start.params.logprobs is not None else None
        return WorkResult(work.seq, tokens, accepted, certain, prompt_logprobs=of_prompt)

    def _find(self, sequence: _StageSequence) -> SimulatedAnswer:
        """The answer to the prompt in the cache."""
        assert self._answers is not None, "only the last stage verifies"
        prompt = self._cache[_rows(sequence.table, 0, sequence.start.n_prompt)]
        return self._answers.to(prompt.tolist(), sequence.start.params)


def _rows(table: BlockTable, first: int, last: int) -> slice | list[int]:
    """Cache rows of slots ``first`` to ``last - 1``."""
    if table.base is not None:
        return slice(table.base + first, table.base + last)
    return [table.row(slot) for slot in range(first, last)]


def _until_stop(future: list[int], sequence: _StageSequence) -> list[int]:
    """The text up to the first stop id, which ends it."""
    stops = set(sequence.start.params.stop_ids)
    place = next((i for i, token in enumerate(future) if token in stops), len(future))
    return future[: place + 1]
