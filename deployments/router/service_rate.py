"""How fast sequences get on in the present company, measured as they do, and when a newcomer's turn would come."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from engine.scheduling.sequence import Sequence
from engine.step import Step

MEMORY_S = 10.0  # seconds after which what was measured counts a third
MEMORY_REQUESTS = 64  # requests after which a length counts a third


class Pace:
    """Seconds per prompt token and per output token of one sequence among all that run; every ``now`` in seconds.

    What counts is the time a sequence spends between two of its answers, whatever the reason: other sequences'
    arithmetic, drafting, the way there and back. So the figures need no model of the pipeline.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # sequence -> its last answer, or when its first step was sent
        self._prompt_s = self._prompt_tokens = 0.0
        self._output_s = self._output_tokens = 0.0
        self._used = self._allowed = 0.0  # output tokens of finished requests, and what they might have had
        self._last_decay = 0.0

    def sent(self, step: Step, now: float) -> None:
        """A step is on its way; sequences that the target has not seen begin with it."""
        for start in step.starts:
            self._since[start.seq] = now
        for work in step.work:
            self._since.setdefault(work.seq, now)

    def answered(self, seq: int, n_read: int, n_written: int, now: float) -> None:
        """A sequence got on by ``n_read`` tokens of its text read and ``n_written`` tokens of output."""
        since = self._since.get(seq)
        if since is None:
            return
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

    def finished(self, sequence: Sequence) -> None:
        """A sequence has come to its end."""
        keep = math.exp(-1 / MEMORY_REQUESTS)
        self._used = keep * self._used + sequence.n_output
        self._allowed = keep * self._allowed + sequence.params.max_tokens

    def forget(self, seq: int) -> None:
        """A sequence is over, or is not running any more."""
        self._since.pop(seq, None)

    def forget_all(self) -> None:
        """None is running any more; what was measured stays."""
        self._since.clear()

    @property
    def is_known(self) -> bool:
        """Whether enough was measured to say anything."""
        return self._output_tokens > 0 and self._output_s > 0 and self._allowed > 0

    def expected_output(self, sequence: Sequence) -> float:
        """Tokens it will still write: most requests end before their ``max_tokens``, by a share that is measured."""
        share = self._used / self._allowed if self._allowed else 1.0
        return max(1.0, share * sequence.max_new)

    def remaining(self, sequence: Sequence) -> float:
        """Seconds until a sequence is done once it runs; needs ``is_known``."""
        per_prompt = self._prompt_s / self._prompt_tokens if self._prompt_tokens else 0.0
        unread = max(0, sequence.n_prefill - sequence.n_cached)
        per_output = self._output_s / self._output_tokens
        return unread * per_prompt + self.expected_output(sequence) * per_output


def seconds_until_a_place(n_places: int, running: Iterable[float], queue: Iterable[float]) -> list[float]:
    """When one of ``n_places`` is free for a newcomer behind none, one, two .. all of a queue.

    Args:
        n_places: sequences that can run side by side; at least one, and at least those that run.
        running: seconds until each of those that run is done.
        queue: seconds each of those that wait will take, in order.
    """
    free_at = sorted(running)
    free_at = [0.0] * max(0, n_places - len(free_at)) + free_at  # sorted: a heap
    waits = [free_at[0]]
    for seconds in queue:
        heapq.heapreplace(free_at, free_at[0] + seconds)
        waits.append(free_at[0])
    return waits
