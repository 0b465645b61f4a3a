"""The order in which waiting sequences are admitted. Knows tenants and priorities, nothing of memory or steps.

Within a priority, tenants share the target by *start-time fair queueing*: on a clock that counts tokens of work, a
tenant's next sequence starts where its last one ended, but not before the present; the earliest start goes first.
However many sequences one tenant queues, a sequence of another tenant waits for about one of them. The clock advances
by each waiting tenant's share of the work served. A clock that only followed the starts would stand still while new
tenants kept coming, and none of them would be served twice.

The work of a sequence is the tokens to be prefilled plus the most it may still emit, because a short question can have
an endless answer. The length of an answer is unknown in advance, so a request for fewer tokens is served sooner.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

from engine.scheduling.sequence import Sequence


def work_of(sequence: Sequence) -> int:
    """Return the tokens that a waiting sequence has to prefill, plus the most it may still emit."""
    return sequence.n_prefill + sequence.max_new


@dataclass(slots=True)
class _Level:
    """The sequences of one priority."""

    front: list[Sequence] = field(default_factory=list)  # preempted and resumed sequences, by arrival
    tenants: dict[str, deque[Sequence]] = field(default_factory=dict)  # by arrival; no empty queue
    starts: dict[str, int] = field(default_factory=dict)  # tenant -> clock at which its next sequence starts
    clock: int = 0  # tokens; the present, when a sequence was last served
    advance: int = 0  # tokens that the clock advances by until the next turn
    n_kept: int = 0  # entries of ``starts`` after the last ``drop_past_starts``

    def start(self, tenant: str) -> int:
        return max(self.starts.get(tenant, 0), self.clock) if tenant not in self.tenants else self.starts[tenant]

    def next_tenant(self) -> str:
        return min(self.tenants, key=lambda tenant: (self.starts[tenant], self.tenants[tenant][0].seq))

    def serve(self) -> Sequence:
        """Remove the next sequence of the tenants, charge its tenant, and return it."""
        tenant, n_waiting = self.next_tenant(), len(self.tenants)
        sequence = self.tenants[tenant].popleft()
        work = work_of(sequence)
        self.clock = max(self.clock + self.advance, self.starts[tenant])
        self.advance = -(-work // n_waiting)
        self.starts[tenant] += work
        return sequence

    def drop_past_starts(self) -> None:
        """Drop starts before the clock, whenever there are twice as many as after the last time."""
        if len(self.starts) > 2 * self.n_kept + 16:
            known = self.starts.items()
            self.starts = {name: start for name, start in known if name in self.tenants or start > self.clock}
            self.n_kept = len(self.starts)

    def in_order(self) -> list[tuple[int, int, Sequence]]:
        """Return (start, number, sequence) of all tenants' sequences in the order of service."""
        found = []
        for tenant, queue in self.tenants.items():
            start = self.starts[tenant]
            for sequence in queue:
                found.append((start, sequence.seq, sequence))
                start += work_of(sequence)
        return sorted(found, key=lambda entry: entry[:2])


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queue at one moment, in order, for looking up the places of new sequences by bisection."""

    sequences: list[Sequence]
    places: list[tuple[int, int, int]]  # (priority, start, number) of each; sequences in front have start -1
    starts: dict[int, dict[str, int]]  # priority -> tenant -> where its next sequence would start
    clocks: dict[int, int]  # priority -> the earliest start of a new sequence

    def n_ahead(self, newcomer: Sequence) -> int:
        """Return how many sequences would be served before ``newcomer``."""
        priority = newcomer.request.priority
        start = max(self.starts.get(priority, {}).get(newcomer.request.tenant, 0), self.clocks.get(priority, 0))
        return bisect_left(self.places, (priority, start, newcomer.seq))


class FairQueue:
    """Waiting sequences: by priority (lower first), then preempted and resumed ones, then the tenants in turns."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}  # by priority; no empty level
        self._n = 0

    def __len__(self) -> int:
        """Sequences in the queue."""
        return self._n

    def push(self, sequence: Sequence) -> None:
        """Queue a new sequence after the others of its tenant."""
        level = self._levels.setdefault(sequence.request.priority, _Level())
        level.starts[sequence.request.tenant] = level.start(sequence.request.tenant)
        level.tenants.setdefault(sequence.request.tenant, deque()).append(sequence)
        self._n += 1

    def push_front(self, sequence: Sequence) -> None:
        """Queue a sequence that has run already before all new sequences of its priority."""
        level = self._levels.setdefault(sequence.request.priority, _Level())
        insort(level.front, sequence, key=lambda other: other.seq)
        self._n += 1

    def peek(self) -> Sequence | None:
        """Return the sequence whose turn it is; None when the queue is empty."""
        if not self._levels:
            return None
        level = self._levels[min(self._levels)]
        return level.front[0] if level.front else level.tenants[level.next_tenant()][0]

    def pop(self) -> Sequence:
        """Remove and return the sequence whose turn it is; there must be one."""
        priority = min(self._levels)
        level = self._levels[priority]
        self._n -= 1
        sequence = level.front.pop(0) if level.front else level.serve()
        self._tidy(priority, sequence.request.tenant)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence without charging its tenant.

        Raises:
            ValueError: the sequence is not in the queue.
        """
        level = self._levels.get(sequence.request.priority, _Level())
        if sequence in level.front:
            level.front.remove(sequence)
        else:
            level.tenants.get(sequence.request.tenant, deque()).remove(sequence)
        self._n -= 1
        self._tidy(sequence.request.priority, sequence.request.tenant)

    def snapshot(self) -> QueueSnapshot:
        """Return the current queue, in order."""
        snapshot = QueueSnapshot([], [], {}, {})
        for priority, level in sorted(self._levels.items()):
            snapshot.sequences.extend(level.front)
            snapshot.places.extend((priority, -1, sequence.seq) for sequence in level.front)
            starts = dict(level.starts)
            for start, seq, sequence in level.in_order():
                snapshot.sequences.append(sequence)
                snapshot.places.append((priority, start, seq))
                starts[sequence.request.tenant] = start + work_of(sequence)
            snapshot.starts[priority], snapshot.clocks[priority] = starts, level.clock
        return snapshot

    def _tidy(self, priority: int, tenant: str) -> None:
        """Drop empty entries, so that memory is bounded by the most tenants that waited at a time."""
        level = self._levels[priority]
        if not level.tenants.get(tenant, True):
            del level.tenants[tenant]
        if not level.front and not level.tenants:
            del self._levels[priority]
        else:
            level.drop_past_starts()
