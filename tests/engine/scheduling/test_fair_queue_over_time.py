"""A queue that never empties: what it remembers stays small, and no tenant is kept out for ever."""

from __future__ import annotations

import pytest

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.sequence import Sequence


def request(seq: int, tenant: str, work: int = 20) -> Sequence:
    return Sequence.of(seq, Request([5] * 4, SamplingParams(max_tokens=work - 4), max_nodes=64, tenant=tenant))


class Popping:
    """Pops, and counts the entries that were gone through to forget some of them."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.n_copied = 0
        self.n_starts = 0  # of any moment, at most

    def pop(self) -> Sequence:
        before = self.queue._levels[0].starts
        sequence = self.queue.pop()
        level = self.queue._levels[0]
        self.n_copied += 0 if level.starts is before else len(before)
        self.n_starts = max(self.n_starts, len(level.starts))
        return sequence


def test_ever_new_tenants_leave_nothing_behind_and_do_not_keep_out_one_that_was_served() -> None:
    queue, n_pops = FairQueue(), 3000
    popping = Popping(queue)
    for seq in range(10):
        queue.push(request(seq, f"new {seq}"))
    waited: list[int] = []
    asked = 0
    queue.push(request(10**6, "again"))
    for pop in range(n_pops):
        if popping.pop().request.tenant == "again":
            waited.append(pop - asked)
            asked = pop
            queue.push(request(10**6 + pop, "again"))
        else:
            queue.push(request(10 + pop, f"new {10 + pop}"))
    assert popping.n_starts <= 8 * 11
    assert popping.n_copied <= 3 * n_pops
    assert len(waited) > n_pops / 33
    assert max(waited) <= 33, "three turns of all that wait"


def test_what_was_served_is_not_gone_through_at_every_turn() -> None:
    """Tenants that were served large sequences are remembered until the present reaches what they took."""
    queue, n_large, n_small = FairQueue(), 100, 150
    for seq in range(2 * n_large):
        queue.push(request(seq, f"large {seq}", work=10_000))
    for seq in range(n_small + 1):
        queue.push(request(1000 + seq, "small", work=5))
    for _ in range(n_large):
        queue.pop()
    for sequence in queue.snapshot().sequences:
        if sequence.request.tenant != "small":
            queue.remove(sequence)
    popping = Popping(queue)
    for _ in range(n_small):
        popping.pop()
    assert popping.n_starts >= n_large
    assert popping.n_copied <= 4 * n_small


@pytest.mark.parametrize("n_bursts", [1, 30])
def test_bursts_of_single_requests_do_not_delay_later_newcomers(n_bursts: int) -> None:
    """The clock must not run ahead of a tenant that goes on: its requests would go before a newcomer's."""
    queue = FairQueue()
    for seq in range(3000):
        queue.push(request(seq, "flood"))
    for burst in range(n_bursts):
        ids = range(10_000 * (burst + 1), 10_000 * (burst + 1) + 50)
        for seq in ids:
            queue.push(request(seq, f"single {seq}"))
        left = set(ids)
        while left:
            left.discard(queue.pop().seq)
    queue.push(request(10**7, "newcomer"))
    served = [queue.pop().seq for _ in range(8)]
    assert 10**7 in served
