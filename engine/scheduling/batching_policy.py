"""The batch builder: which trees of ready sequences and which chunks of prompts share a step. Knows no answers."""

from __future__ import annotations

from engine.scheduling.chunk_budget import ChunkBudget
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.micro_batches import MicroBatches
from engine.scheduling.options import SchedulerOptions
from engine.scheduling.running_set import RunningSet
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import SequenceStart, Step, Work
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo


class BatchingPolicy:
    """Takes from the queue and from the running.

    Args:
        info: of the target.
        options: limits.
        costs: the target's step times; None: not measured.
        waiting: the queue.
        running: sequences that own blocks.
    """

    def __init__(
        self,
        info: TargetInfo,
        options: SchedulerOptions,
        costs: StepCosts | None,
        waiting: FairQueue,
        running: RunningSet,
    ) -> None:
        self._info = info
        self._options = options
        self._waiting = waiting
        self._running = running
        self._batches = MicroBatches(options.n_micro_batches, options.max_sequences, costs)
        self._chunks = ChunkBudget(options.prefill_chunk, info.block_size, options.max_stall, costs)

    def next_step(self, step_id: int, n_in_flight: int) -> Step | None:
        """The next micro-batch, or None when nothing should be sent now; see ``Scheduler.next_step``.

        As many steps as there are stages keep all of them busy; one more hides the way back, but only if it is a full
        one: a smaller one would be missed by the next.
        """
        n_stages = self._options.n_micro_batches
        ready = self._running.ready()
        size = self._micro_batch()
        if n_in_flight > n_stages or (n_in_flight == n_stages and len(ready) < size):
            return None
        work: list[Work] = []
        starts: list[SequenceStart] = []
        rows = self._add_trees(ready, size, work, step_id)
        self._add_chunks(work, starts, rows)
        if not work and (n_in_flight or not self._running.has_ends):
            return None  # what the target should forget goes with the next step that has work
        return Step(step_id, work, starts, self._running.take_ends())

    def _micro_batch(self) -> int:
        """Sequences that a step should have, of those that decode."""
        decoding = self._running.decoding()
        rows = 1 + sum([len(sequence.tree.tokens) for sequence in decoding]) / max(1, len(decoding))
        return self._batches.size(len(decoding), min(rows, self._options.max_step_rows))

    def _add_trees(self, ready: list[Sequence], size: int, work: list[Work], step_id: int) -> int:
        """Trees of at most ``size`` ready sequences; returns their rows.

        The sequence that has waited longest goes first, or a sequence that does not fit into this step would not fit
        into the next. Of sequences that last shared a step, the one passed over most recently goes first. Priorities
        decide admission and preemption, not steps: a running sequence without steps would hold its blocks for ever.
        """
        ready.sort(key=lambda sequence: (sequence.last_step, -sequence.passed_over))
        limit = self._tree_rows()
        rows, last = 0, -1
        for sequence in ready:
            if len(work) == size:
                if sequence.last_step == last:
                    sequence.passed_over = step_id
                continue
            n_rows = 1 + len(sequence.tree)
            if sequence.state is not SequenceState.READY or (rows and rows + n_rows > limit):
                continue  # preempted for an earlier one, or left to the next step
            blocks = self._running.make_room(sequence)
            if blocks is None:
                continue
            rows += 1 + len(sequence.tree)
            # The step's first tree may be larger than ``limit``, the sequence's next one will not be.
            most = min(self._options.max_tree_nodes, max(0, limit - 1))
            sequence.max_nodes = min(sequence.request.max_nodes or 0, most)
            work.append(_tree_work(sequence, blocks, self._running.blocks.regroup(sequence.seq)))
            sequence.in_flight = 1
            last, sequence.last_step = sequence.last_step, step_id
        return rows

    def _tree_rows(self) -> int:
        """Rows of a step that trees may fill: some are left to prompts while there are any to read."""
        rows = self._options.max_step_rows
        if self._running.reading(self._depth()) or (self._waiting and len(self._running) < self._options.max_sequences):
            return rows - max(1, min(self._options.prefill_chunk, rows // 4))
        return rows

    def _depth(self) -> int:
        """Chunks that one prompt may have in flight.

        They depend on each other only in order, and every stage takes steps in order: a prompt alone fills the
        pipeline. But a token would wait for each that is ahead of it: beside others that decode, it is one.
        """
        return 1 if self._running.is_any_decoding else self._options.n_micro_batches

    def _add_chunks(self, work: list[Work], starts: list[SequenceStart], n_rows: int) -> None:
        """Prompt chunks of sequences that are being prefilled, then of waiting ones that fit, beside ``n_rows`` rows of
        trees."""
        reading = self._running.reading(self._depth())
        if not reading and self._waiting.peek() is None:
            return  # every step of every text comes here: what follows takes longer than all the rest
        context = max((sequence.n_sent for sequence in reading), default=0)
        rows = self._chunks.rows(self._running.is_any_decoding, n_rows, context)
        rows = min(rows, self._options.max_step_rows - n_rows)
        for sequence in reading:
            if rows > 0:
                rows -= self._add_chunk(sequence, work, starts, rows)
        while rows > 0 and (newcomer := self._newcomer()) is not None:
            rows -= self._add_chunk(newcomer, work, starts, rows)

    def _newcomer(self) -> Sequence | None:
        """The next of the queue, if there is room for it: from now on it owns blocks."""
        sequence = self._waiting.peek()
        if sequence is None or len(self._running) >= self._options.max_sequences:
            return None
        # All of the text and a tree must fit now, or a newcomer would be preempted in the middle of its prompt.
        wanted = sequence.n_prefill + 1 + min(sequence.budget, self._info.block_size)
        if self._running.blocks.missing(sequence.seq, wanted) > self._running.blocks.n_free:
            return None
        self._waiting.pop()
        self._running.enter(sequence)
        return sequence

    def _add_chunk(self, sequence: Sequence, work: list[Work], starts: list[SequenceStart], rows: int) -> int:
        start = None if sequence.known else self._start(sequence)
        first = sequence.n_sent
        last = min(first + rows, sequence.n_prefill)
        # The first chunk takes the blocks of all: two half-read prompts could lock each other out of the rest.
        blocks = self._running.grow(sequence, sequence.n_prefill)
        if start is not None:
            starts.append(start)
            sequence.known = True
        draw = last == sequence.n_prefill and sequence.n_output == 0
        tokens = sequence.tokens[first:last]
        nodes = sequence.draft_nodes if draw else 0
        nexts = sequence.tokens[first + 1 : last + 1] if sequence.wants_prompt_logprobs else []
        max_new = sequence.max_new
        work.append(
            Work(sequence.seq, first, tokens, None, [], blocks, draw, max_new, draft_nodes=nodes, logprobs_of=nexts)
        )
        sequence.in_flight += 1
        sequence.n_sent = last
        return last - first

    def _start(self, sequence: Sequence) -> SequenceStart:
        """Tells the target of a sequence, and where the beginning of its text is in the cache already.

        Before it takes blocks: they may be the ones that hold that beginning.
        """
        found = self._running.prefixes.find(sequence, self._running)
        sequence.n_sent, sequence.prompt_top_ids = found.n, found.top_ids
        if sequence.stats.n_preempted == 0:
            sequence.stats.n_cached = min(found.n, sequence.n_prompt)
        params = sequence.request.params
        text = sequence.tokens[: found.n] if params.needs_text else []
        request_id = sequence.request.request_id
        return SequenceStart(
            sequence.seq, params, sequence.n_prompt, sequence.needs, found.n, found.blocks, text, request_id
        )


def _tree_work(sequence: Sequence, blocks: list[int], moved: list[int] | None) -> Work:
    """``blocks`` are new; ``moved``, unless None, are all that it has, elsewhere than before."""
    told, root = blocks if moved is None else moved, [sequence.tokens[-1]]
    return Work(
        sequence.seq,
        sequence.n_cached,
        root,
        sequence.tree,
        sequence.keep,
        told,
        max_new=sequence.max_new,
        moved=moved is not None,
        reads_back=sequence.reads_back,
        draft_nodes=sequence.draft_nodes,
    )
