"""Measures how fast a lane serves its sequences, and estimates how long a new request would wait."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.step import Step

MEMORY_S = 10.0  # seconds after which a measurement's weight is 1/e
MEMORY_REQUESTS = 64  # requests after which a length's weight is 1/e


class ServiceRate:
    """Seconds per prompt token and per output token of one sequence while others run; ``now`` is in seconds.

    Measures the time between two results of the same sequence, whatever takes it: computing other sequences, drafting,
    transport. So the rates need no model of the pipeline.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # sequence -> time of its last result, or of its first step
        self._prompt_s = self._prompt_tokens = 0.0
        self._output_s = self._output_tokens = 0.0
        self._used = self._allowed = 0.0  # output tokens of finished requests, and the sum of their ``max_tokens``
        self._last_decay = 0.0

    def on_sent(self, step: Step, now: float) -> None:
        """Start the clocks of a step's sequences that are new to the target."""
        for start in step.starts:
            self._since[start.seq] = now
        for work in step.work:
            if work.seq not in self._since:
                self._since[work.seq] = now

    def on_result(self, seq: int, n_read: int, n_written: int, now: float) -> None:
        """Measure a result: the target prefilled ``n_read`` tokens of the sequence, or generated ``n_written``."""
        since = self._since.get(seq)
        if since is None:
            return
        if now != self._last_decay:  # once for all sequences of a step
            self._decay(now)
        self._since[seq] = now
        if n_read:
            self._prompt_s += now - since
            self._prompt_tokens += n_read
        else:
            self._output_s += now - since
            self._output_tokens += n_written

    def _decay(self, now: float) -> None:
        keep = math.exp(-max(0.0, now - self._last_decay) / MEMORY_S) if self._last_decay else 1.0
        self._last_decay = now
        self._prompt_s, self._prompt_tokens = keep * self._prompt_s, keep * self._prompt_tokens
        self._output_s, self._output_tokens = keep * self._output_s, keep * self._output_tokens

    def on_finish(self, sequence: Sequence) -> None:
        """Measure the length of a finished sequence."""
        keep = math.exp(-1 / MEMORY_REQUESTS)
        self._used = keep * self._used + sequence.n_output
        self._allowed = keep * self._allowed + sequence.request.params.max_tokens

    def forget(self, seq: int) -> None:
        """Drop the clock of a sequence that no longer runs."""
        self._since.pop(seq, None)

    def forget_all(self) -> None:
        """Drop the clocks of all sequences; the measured rates stay."""
        self._since.clear()

    @property
    def is_known(self) -> bool:
        """Whether there are enough measurements for an estimate."""
        return self._output_tokens > 0 and self._output_s > 0 and self._allowed > 0

    def expected_output(self, sequence: Sequence) -> float:
        """Tokens a sequence will still generate, by the measured share of ``max_tokens`` that requests use."""
        share = self._used / self._allowed if self._allowed else 1.0
        return max(1.0, share * sequence.max_new)

    def remaining(self, sequence: Sequence) -> float:
        """Seconds from a sequence's start, or from now if it runs, to its end; needs ``is_known``."""
        per_prompt = self._prompt_s / self._prompt_tokens if self._prompt_tokens else 0.0
        unread = max(0, sequence.n_prefill - sequence.n_cached)
        per_output = self._output_s / self._output_tokens
        return unread * per_prompt + self.expected_output(sequence) * per_output


class WaitEstimate:
    """Estimated waits in one lane at one moment, for every place of its queue.

    Args:
        scheduler: of the lane.
        service_rate: of the lane.
    """

    def __init__(self, scheduler: Scheduler, service_rate: ServiceRate) -> None:
        self._queue = scheduler.snapshot_queue()
        self.waiting = Counter(sequence.request.tenant for sequence in self._queue.sequences)  # tenant -> sequences
        self._until: list[float] = []  # seconds until a slot is free, by the number of queued sequences ahead
        if service_rate.is_known:
            running = [service_rate.remaining(sequence) for sequence in scheduler.running]
            slots = max(len(running), n_slots(scheduler, service_rate))
            queue = (service_rate.remaining(sequence) for sequence in self._queue.sequences)
            self._until = seconds_until_slot(slots, running, queue)

    def seconds(self, sequence: Sequence) -> float | None:
        """Seconds until a new sequence would start, by its place in the queue; None before any measurement."""
        return self._until[self._queue.n_ahead(sequence)] if self._until else None


def n_slots(scheduler: Scheduler, service_rate: ServiceRate) -> int:
    """Sequences that can run concurrently: ``max_sequences``, or as many of today's length as fit into the KV cache."""
    live, info = scheduler.sequences, scheduler.info
    if not live:
        return scheduler.options.max_sequences
    tokens = sum(len(sequence.tokens) + service_rate.expected_output(sequence) for sequence in live)
    fit = info.n_blocks * info.block_size * len(live) / tokens
    return max(1, min(scheduler.options.max_sequences, int(fit)))


def seconds_until_slot(n_slots: int, running: Iterable[float], queue: Iterable[float]) -> list[float]:
    """When a slot is free for a new sequence after the first 0, 1, 2, .. sequences of a queue.

    Args:
        n_slots: sequences that can run concurrently; at least 1, and at least as many as run.
        running: seconds until the end of each running sequence.
        queue: seconds each queued sequence will run, in the order of starts.

    Returns:
        Seconds; one entry more than ``queue``.
    """
    free_at = sorted(running)
    free_at = [0.0] * max(0, n_slots - len(free_at)) + free_at  # sorted: a heap
    waits = [free_at[0]]
    for seconds in queue:
        heapq.heapreplace(free_at, free_at[0] + seconds)
        waits.append(free_at[0])
    return waits
