"""Continuous batching: which sequences share the next step, and what a step's answer does to them.

Pure bookkeeping: no tensors, no threads, no clock but for statistics. The offline loop and the router drive the same
scheduler: ``submit`` / ``next_step`` / ``commit`` / ``set_tree`` / ``cancel``. Several steps may be in flight; a
sequence is in one of them at most.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from engine.admission import check_prompt
from engine.errors import OutOfBlocksError, OverloadedError
from engine.kv.blocks import BlockAllocator
from engine.progress import Progress, apply_answer
from engine.sequence import Sequence, State
from engine.step import SequenceStart, Step, StepResult, Work, WorkResult
from engine.target import MAX_TREE, TargetInfo
from engine.tree import EMPTY_TREE, TokenTree


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits of batching."""

    max_sequences: int = 64  # sequences that own KV blocks
    max_waiting: int = 256  # sequences in the queue behind them
    max_step_rows: int = 2048  # rows (tokens and nodes) of one step
    prefill_chunk: int = 512  # rows of prompt per step
    n_micro_batches: int = 1  # pipeline stages: ready sequences are split over so many steps


class Scheduler:
    """Owns every live sequence and every KV block."""

    def __init__(self, info: TargetInfo, options: SchedulerOptions | None = None) -> None:
        self.info = info
        self.options = options or SchedulerOptions()
        self.blocks = BlockAllocator(info.n_blocks, info.block_size)
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []  # in order of arrival within a priority
        self._ends: list[int] = []  # sequences the target still holds and should forget
        self._live: dict[int, Sequence] = {}

    # -- entering and leaving ------------------------------------------------------------------------------------

    @property
    def n_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Sequences that own blocks."""
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is alive or the target has something to forget."""
        return bool(self._live or self._ends)

    def find(self, seq: int) -> Sequence:
        """A sequence that is not finished, by its number."""
        return self._live[seq]

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            PromptTooLongError: its text can never fit.
            OverloadedError: the queue is full.
            RequestError: the prompt is empty or holds ids outside the vocabulary.
        """
        check_prompt(sequence, self.info)
        if len(self._waiting) >= self.options.max_waiting:
            raise OverloadedError(f"{len(self._waiting)} requests are waiting already", retry_after=1.0)
        sequence.max_nodes = min(sequence.max_nodes, MAX_TREE, self.options.max_step_rows - 1)
        self._live[sequence.seq] = sequence
        self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_turn)

    def cancel(self, sequence: Sequence) -> None:
        """Forget a sequence; while a step with it is in flight, at that step's end."""
        if sequence.state is State.FINISHED:
            return
        sequence.cancelled = True
        if not sequence.in_flight:
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        sequence.state = State.FINISHED
        sequence.tree = EMPTY_TREE
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._live.pop(sequence.seq, None)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.seq)
        if sequence.known:
            self._ends.append(sequence.seq)
            sequence.known = False

    def lose_target(self) -> None:
        """The target's state is gone: every live sequence goes back to the queue and will be prefilled again."""
        self._ends.clear()
        for sequence in [*self._running]:
            sequence.known = False
            sequence.in_flight = False
            if sequence.cancelled:
                self._finish(sequence)
            else:
                self._preempt(sequence)

    # -- forming a step ------------------------------------------------------------------------------------------

    def next_step(self, step_id: int) -> Step | None:
        """The next micro-batch, or None when nothing is ready."""
        work: list[Work] = []
        starts: list[SequenceStart] = []
        rows = self._add_trees(work, step_id)
        self._add_chunks(work, starts, self.options.max_step_rows - rows)
        if not work and not self._ends:
            return None
        ends, self._ends = self._ends, []
        return Step(step_id, work, starts, ends)

    def _add_trees(self, work: list[Work], step_id: int) -> int:
        """Trees of ready sequences, an even share of them when the target is a pipeline.

        Whoever waited longest goes first, or those that did not fit into this step would not fit into the next.
        """
        ready = [sequence for sequence in self._running if sequence.state is State.READY and not sequence.in_flight]
        ready.sort(key=lambda sequence: (sequence.priority, sequence.last_step))
        limit = self._tree_rows()
        share = -(-sum(s.state is not State.PREFILLING for s in self._running) // self.options.n_micro_batches)
        rows = 0
        for sequence in ready[: max(1, share)]:
            if sequence.state is not State.READY or (rows and rows + 1 + len(sequence.tree) > limit):
                continue  # preempted for an earlier one, or left to the next step
            blocks = self._make_room(sequence)
            if blocks is None:
                continue
            rows += 1 + len(sequence.tree)
            work.append(
                Work(
                    sequence.seq,
                    sequence.n_cached,
                    [sequence.tokens[-1]],
                    sequence.tree,
                    sequence.keep,
                    blocks,
                    max_new=sequence.max_new,
                )
            )
            sequence.in_flight = True
            sequence.last_step = step_id
        return rows

    def _tree_rows(self) -> int:
        """Rows of a step that trees may fill: some are left to prompts while there are any to read."""
        rows = self.options.max_step_rows
        is_reading = any(s.state is State.PREFILLING and not s.in_flight for s in self._running)
        if is_reading or (self._waiting and len(self._running) < self.options.max_sequences):
            return rows - min(self.options.prefill_chunk, rows // 4)
        return rows

    def _make_room(self, sequence: Sequence) -> list[int] | None:
        """Blocks for a tree; short of memory, first the draft goes, then the youngest other sequence."""
        while True:
            try:
                return self.blocks.grow(sequence.seq, sequence.n_cached + 1 + len(sequence.tree))
            except OutOfBlocksError:
                if len(sequence.tree):
                    sequence.tree = EMPTY_TREE
                    continue
                victim = self._victim()
                if victim is None:
                    return None
                self._preempt(victim)
                if victim is sequence:
                    return None

    def _victim(self) -> Sequence | None:
        """Who gives up its blocks: the least important, latest sequence that is not in flight."""
        for sequence in reversed(self._running):
            if not sequence.in_flight:
                return sequence
        return None

    def _preempt(self, sequence: Sequence) -> None:
        """Drop the cache of a sequence; prompt and output are prefilled again later (recompute)."""
        self._running.remove(sequence)
        self._forget(sequence)
        sequence.n_cached, sequence.keep, sequence.tree = 0, [], EMPTY_TREE
        sequence.state = State.WAITING
        sequence.stats.n_preempted += 1
        self._enqueue(sequence)

    def _add_chunks(self, work: list[Work], starts: list[SequenceStart], rows: int) -> None:
        """Prompt chunks of sequences that are being prefilled, then of waiting ones that fit."""
        rows = min(rows, self.options.prefill_chunk)
        for sequence in [*self._running]:
            if rows > 0 and sequence.state is State.PREFILLING and not sequence.in_flight:
                rows -= self._add_chunk(sequence, work, starts, rows)
        while rows > 0 and self._waiting and len(self._running) < self.options.max_sequences:
            sequence = self._waiting[0]
            # All of the text and a tree must fit now, or a newcomer would be preempted in the middle of its prompt.
            wanted = sequence.n_prefill + 1 + min(sequence.budget, self.info.block_size)
            if self.blocks.missing(sequence.seq, wanted) > self.blocks.n_free:
                return
            self._waiting.pop(0)
            self._enter(sequence)
            rows -= self._add_chunk(sequence, work, starts, rows)

    def _enter(self, sequence: Sequence) -> None:
        sequence.state = State.PREFILLING
        insort(self._running, sequence, key=_turn)

    def _add_chunk(self, sequence: Sequence, work: list[Work], starts: list[SequenceStart], rows: int) -> int:
        first = sequence.n_cached
        last = min(first + rows, sequence.n_prefill)
        # The first chunk takes the blocks of all: two half-read prompts could lock each other out of the rest.
        blocks = self.blocks.grow(sequence.seq, sequence.n_prefill)
        if not sequence.known:
            starts.append(SequenceStart(sequence.seq, sequence.params, sequence.n_prompt, sequence.needs))
            sequence.known = True
        draw = last == sequence.n_prefill and sequence.n_output == 0
        tokens = sequence.tokens[first:last]
        work.append(Work(sequence.seq, first, tokens, None, [], blocks, draw, sequence.max_new))
        sequence.in_flight = True
        return last - first

    # -- a step's answer -----------------------------------------------------------------------------------------

    def commit(self, step: Step, result: StepResult, sequences: Iterable[Sequence]) -> list[Progress]:
        """Apply a step's answer; ``sequences`` are those of ``step.work``, in order."""
        return [
            self._commit_one(sequence, work, answer)
            for sequence, work, answer in zip(sequences, step.work, result.results, strict=True)
        ]

    def _commit_one(self, sequence: Sequence, work: Work, answer: WorkResult) -> Progress:
        sequence.in_flight = False
        if sequence.cancelled:
            self._finish(sequence)
            return Progress(sequence, None, None)
        progress = apply_answer(sequence, work, answer)
        if progress.event is not None and progress.event.finish_reason is not None:
            self._finish(sequence)
        return progress

    def set_tree(self, sequence: Sequence, tree: TokenTree) -> None:
        """The speculator's draft is there: the sequence may join a step."""
        if sequence.state is State.DRAFTING:
            sequence.tree = tree
            sequence.state = State.READY


def _turn(sequence: Sequence) -> tuple[int, int]:
    """First by priority, then by arrival."""
    return sequence.priority, sequence.seq
