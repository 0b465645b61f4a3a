"""Continuous batching: which sequences share the next step, and how a step's answer changes them.

Pure bookkeeping: no tensors, no threads, and a clock only for statistics. The offline loop and the router drive the
same scheduler: ``submit`` / ``next_step`` / ``commit`` / ``set_tree`` / ``build_events`` / ``cancel``. Several steps
may be in flight; a sequence is in one of them at most, or in several with one chunk of its text each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from engine.errors import OverloadedError
from engine.events import StepEvent
from engine.kv.blocks import BlockAllocator
from engine.kv.cached_prefixes import CachedPrefixes
from engine.protocol import Decision
from engine.scheduling.batch_limits import SchedulerOptions
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.commit import AnsweredStep, Commit, apply_answer, build_event
from engine.scheduling.fair_queue import FairQueue, QueueSnapshot
from engine.scheduling.prefix_matcher import PrefixMatcher
from engine.scheduling.request_validation import check_prompt
from engine.scheduling.running_set import RunningSet
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import Step, StepResult, Work, WorkResult
from engine.tree import EMPTY_TREE, TokenTree

__all__ = ["Scheduler", "SchedulerOptions"]


class Scheduler:
    """Owns every live sequence and every KV block.

    Args:
        policy: forms the steps, with the target and the options that it was made for.
    """

    def __init__(self, policy: BatchingPolicy) -> None:
        info = policy.info
        self.info = info
        self.options = policy.options
        cached = CachedPrefixes(info.n_blocks, info.block_size) if self.options.prefix_cache else None
        self.blocks = BlockAllocator(info.n_blocks, info.block_size, cached)
        self._waiting = FairQueue()
        prefixes = PrefixMatcher(self.blocks, cached)
        n_scratch = 0 if info.drafter is None else info.drafter.n_scratch
        self._running = RunningSet(self.blocks, prefixes, self._waiting.push_front, n_scratch)
        self._policy = policy
        policy.bind(self._waiting, self._running)
        self._live: dict[int, Sequence] = {}
        self.decisions: Counter[Decision] = Counter()  # of methods that decide about every step, since the start

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
    def sequences(self) -> Collection[Sequence]:
        """A live view of the sequences that are not finished."""
        return self._live.values()

    @property
    def running(self) -> Iterable[Sequence]:
        """A live view of the sequences that own blocks."""
        return self._running

    def snapshot_queue(self) -> QueueSnapshot:
        """Return the current queue, in which any number of new sequences can look up their places."""
        return self._waiting.snapshot()

    @property
    def has_work(self) -> bool:
        """Whether any sequence is alive, or the target still holds one that has ended."""
        return bool(self._live or self._running.has_ends)

    def find(self, seq: int) -> Sequence:
        """Return a sequence that is not finished, by its number."""
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
        self._policy.limit_tree(sequence, self.options.max_step_rows)
        self.adopt(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Finish a sequence without an event; while steps with it are in flight, after the last of them."""
        if sequence.state is SequenceState.FINISHED:
            return
        sequence.cancelled = True
        if not sequence.in_flight:
            self._finish(sequence)

    def fail(self, sequence: Sequence) -> None:
        """Cancel a sequence after a step with it failed.

        Its blocks are freed only when no other step with it is in flight: later chunks still write to them.
        """
        sequence.in_flight = max(0, sequence.in_flight - 1)
        self.cancel(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Remove a sequence that is in no step, so that another scheduler can ``adopt`` it."""
        assert not sequence.in_flight, "a step in flight holds the sequence"
        self._finish(sequence)
        sequence.state = SequenceState.WAITING
        sequence.n_cached, sequence.keep, sequence.last_step, sequence.last_skipped = 0, [], -1, -1

    def adopt(self, sequence: Sequence) -> None:
        """Queue a sequence that another scheduler has withdrawn; it was admitted there and is not refused here."""
        self._live[sequence.seq] = sequence
        if sequence.n_output:  # it has run before, here or with a lost router
            self._waiting.push_front(sequence)
        else:
            self._waiting.push(sequence)

    def _finish(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        sequence.state = SequenceState.FINISHED
        sequence.tree = EMPTY_TREE
        self._live.pop(sequence.seq, None)
        self._running.free(sequence)

    def lose_target(self) -> None:
        """Preempt every running sequence, because the target's state is lost; all of them are prefilled again."""
        self._running.forget_target()
        for sequence in [*self._running]:
            if sequence.cancelled:
                self._finish(sequence)
            else:
                self._running.preempt(sequence)

    # -- forming a step ------------------------------------------------------------------------------------------

    def next_step(self, step_id: int, n_in_flight: int = 0) -> Step | None:
        """Return the next micro-batch, or None when nothing should be sent now.

        Call it until it returns None, whenever an answer or a draft has come: it decides how many steps are in flight.

        Args:
            step_id: the step's number, larger than all before.
            n_in_flight: steps sent and not answered.
        """
        return self._policy.next_step(step_id, n_in_flight)

    # -- a step's answer -----------------------------------------------------------------------------------------

    def commit(self, step: Step, result: StepResult, sequences: Iterable[Sequence]) -> list[Commit]:
        """Apply a step's answer; ``sequences`` are those of ``step.work``, in order."""
        answered = AnsweredStep(step, result)
        return [
            self._commit_one(sequence, work, answer, answered)
            for sequence, work, answer in zip(sequences, step.work, result.results, strict=True)
        ]

    def _commit_one(self, sequence: Sequence, work: Work, answer: WorkResult, answered: AnsweredStep) -> Commit:
        sequence.in_flight -= 1
        if sequence.cancelled:
            if not sequence.in_flight:
                self._finish(sequence)
            return Commit(sequence, answered)
        commit = apply_answer(sequence, work, answer, answered)
        if commit.finish_reason is not None:
            self._finish(sequence)
        return commit

    def build_events(self, commits: Iterable[Commit]) -> list[tuple[Sequence, StepEvent]]:
        """Count a step's commits in the statistics and return their events; called once the next step was sent."""
        events = []
        for commit in commits:
            if commit.decision is not None:
                self.decisions[commit.decision] += 1
            event = build_event(commit)
            if event is not None:
                events.append((commit.sequence, event))
        return events

    def set_tree(self, sequence: Sequence, tree: TokenTree, reads_back: bool = True) -> None:
        """Set a sequence's draft, so that it may join a step.

        Args:
            sequence: of the draft.
            tree: it may be empty.
            reads_back: whether the target's top ids after the nodes are read back.
        """
        if sequence.state is SequenceState.DRAFTING:
            sequence.tree, sequence.reads_back = tree, reads_back
            sequence.state = SequenceState.READY
