"""The batching policy: which trees of ready sequences and which prompt chunks share a step.

The owner of a pipeline (``deployments.router.lane``, ``engine.loop``) constructs a policy and hands it to a scheduler.
The policy knows no answers: the scheduler commits them.
"""

from __future__ import annotations

from engine.scheduling.batch_limits import SchedulerOptions, StepLimits
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.running_set import RunningSet
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import SequenceStart, Step, Work
from engine.step_cost import StepCosts
from engine.target_model.info import MAX_TREE, TargetInfo


class BatchingPolicy:
    """Forms the steps of one scheduler.

    Args:
        info: of the target.
        options: limits.
        costs: the target's step times, for micro-batches and prompt chunks; None: not measured.
    """

    def __init__(
        self, info: TargetInfo, options: SchedulerOptions | None = None, costs: StepCosts | None = None
    ) -> None:
        self.info = info
        self.options = options or SchedulerOptions()
        self._limits = StepLimits(self.options, info.block_size, costs)
        self._queue: FairQueue
        self._running: RunningSet

    def bind(self, queue: FairQueue, running: RunningSet) -> None:
        """Take sequences from this queue and this running set from now on; their scheduler calls it once."""
        self._queue, self._running = queue, running

    def limit_tree(self, sequence: Sequence, n_rows: int) -> None:
        """Set ``sequence.max_nodes`` for its next tree: at most the request's, and ``n_rows`` - 1 (root)."""
        sequence.max_nodes = min(sequence.request.max_nodes, MAX_TREE, max(0, n_rows - 1))

    def next_step(self, step_id: int, n_in_flight: int) -> Step | None:
        """Return the next micro-batch, or None when nothing should be sent now; see ``Scheduler.next_step``.

        As many steps as there are stages keep all of them busy. One more hides the way back, but only if it is a full
        one: a smaller one would take sequences from the next.
        """
        n_stages = self.options.n_micro_batches
        ready = self._running.ready()
        size = self._micro_batch_size()
        if n_in_flight > n_stages or (n_in_flight == n_stages and len(ready) < size):
            return None
        work: list[Work] = []
        starts: list[SequenceStart] = []
        rows = self._add_trees(ready, size, work, step_id)
        self._add_chunks(work, starts, rows)
        if not work and (n_in_flight or not self._running.has_ends):
            return None  # ended sequences are reported with the next step that has work
        return Step(step_id, work, starts, self._running.pop_ends())

    def _micro_batch_size(self) -> int:
        decoding = self._running.decoding()
        rows = 1 + sum([len(sequence.tree.tokens) for sequence in decoding]) / max(1, len(decoding))
        return self._limits.micro_batch_size(len(decoding), min(rows, self.options.max_step_rows))

    def _add_trees(self, ready: list[Sequence], size: int, work: list[Work], step_id: int) -> int:
        """Add the trees of at most ``size`` ready sequences; return their rows.

        The sequence that has waited longest goes first. Otherwise a sequence that does not fit into this step might not
        fit into the next. Of sequences that last shared a step, the one skipped most recently goes first. Priorities
        decide admission and preemption, not steps: a running sequence without steps would hold its blocks forever.
        """
        # The loop finds skipped sequences by equal ``last_step``: another order must set ``last_skipped`` otherwise.
        ready.sort(key=lambda sequence: (sequence.last_step, -sequence.last_skipped))
        limit = self._tree_rows()
        rows, last = 0, -1
        for sequence in ready:
            if len(work) == size:
                if sequence.last_step == last:
                    sequence.last_skipped = step_id
                continue
            n_rows = 1 + len(sequence.tree)
            if sequence.state is not SequenceState.READY or (rows and rows + n_rows > limit):
                continue  # preempted for an earlier one, or left to the next step
            blocks = self._running.allocate_or_preempt(sequence)
            if blocks is None:
                continue
            rows += 1 + len(sequence.tree)
            self.limit_tree(sequence, limit)  # the first tree of a step may be larger, its sequence's next one is not
            work.append(_tree_work(sequence, blocks, self._running.blocks.defragment(sequence.seq)))
            sequence.in_flight = 1
            last, sequence.last_step = sequence.last_step, step_id
        return rows

    def _tree_rows(self) -> int:
        """Return the rows of a step that trees may fill; while there are prompts to read, some are left to them."""
        rows = self.options.max_step_rows
        if self._running.reading(self._max_chunks()) or (
            self._queue and len(self._running) < self.options.max_sequences
        ):
            return rows - max(1, min(self.options.prefill_chunk, rows // 4))
        return rows

    def _max_chunks(self) -> int:
        """Return how many chunks one prompt may have in flight.

        A prompt alone fills the pipeline: its chunks depend on each other only in order, and stages keep the order.
        While other sequences decode it is one, because a token would wait for every chunk ahead of it.
        """
        return 1 if self._running.is_any_decoding else self.options.n_micro_batches

    def _add_chunks(self, work: list[Work], starts: list[SequenceStart], n_rows: int) -> None:
        """Add chunks of prompts that are being read, then of waiting ones that fit; trees take ``n_rows`` rows."""
        reading = self._running.reading(self._max_chunks())
        if not reading and self._queue.peek() is None:
            return  # most steps: the rest of this method takes longer than all of the step's other bookkeeping
        context = max((sequence.n_sent for sequence in reading), default=0)
        rows = self._limits.prompt_rows(self._running.is_any_decoding, n_rows, context)
        rows = min(rows, self.options.max_step_rows - n_rows)
        for sequence in reading:
            if rows > 0:
                rows -= self._add_chunk(sequence, work, starts, rows)
        while rows > 0 and (newcomer := self._admit_next()) is not None:
            rows -= self._add_chunk(newcomer, work, starts, rows)

    def _admit_next(self) -> Sequence | None:
        """Move the next sequence of the queue into the running set, and return it; None if there is no room."""
        sequence = self._queue.peek()
        if sequence is None or len(self._running) >= self.options.max_sequences:
            return None
        # All of the text and a tree must fit now, or the sequence would be preempted in the middle of its prompt.
        n_tokens = sequence.n_prefill + 1 + min(sequence.budget, self.info.block_size)
        if self._running.blocks.n_missing(sequence.seq, n_tokens) > self._running.blocks.n_free:
            return None
        self._queue.pop()
        self._running.add(sequence)
        return sequence

    def _add_chunk(self, sequence: Sequence, work: list[Work], starts: list[SequenceStart], rows: int) -> int:
        """Add a chunk of at most ``rows`` rows; return its rows."""
        start = None if sequence.is_on_target else self._start(sequence)
        first = sequence.n_sent
        last = min(first + rows, sequence.n_prefill)
        # The first chunk allocates the blocks of all: two half-read prompts could lock each other out of the rest.
        blocks = self._running.allocate(sequence, sequence.n_prefill)
        if start is not None:
            starts.append(start)
            sequence.is_on_target = True
        draw = last == sequence.n_prefill and sequence.n_output == 0
        work.append(
            Work(
                sequence.seq,
                first,
                sequence.tokens[first:last],
                None,
                [],
                blocks,
                draw,
                sequence.max_new,
                draft_nodes=sequence.draft_nodes if draw else 0,
                logprobs_of=sequence.tokens[first + 1 : last + 1] if sequence.needs_prompt_logprobs else [],
            )
        )
        sequence.in_flight += 1
        sequence.n_sent = last
        return last - first

    def _start(self, sequence: Sequence) -> SequenceStart:
        """Return the start of a sequence on the target, with the cached prefix that its text begins with.

        The prefix is looked up before blocks are allocated, for these may be the blocks that hold it.
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


def _tree_work(sequence: Sequence, new_blocks: list[int], new_table: list[int] | None) -> Work:
    """Return the work of a tree; ``new_table``, unless None, replaces all blocks of the sequence."""
    return Work(
        sequence.seq,
        sequence.n_cached,
        [sequence.tokens[-1]],
        sequence.tree,
        sequence.keep,
        new_blocks if new_table is None else new_table,
        max_new=sequence.max_new,
        moved=new_table is not None,
        reads_back=sequence.reads_back,
        draft_nodes=sequence.draft_nodes,
    )
