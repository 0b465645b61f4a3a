"""Tenants take turns, priorities come first, and one tenant's flood is its own affair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.fair_queue import FairQueue, QueueSnapshot, work_of
from engine.scheduling.scheduler import Scheduler, SchedulerOptions
from engine.scheduling.sequence import Sequence, State
from tests.support.virtual_pipeline import INFO, VirtualPipeline


def request(seq: int, tenant: str = "", work: int = 20, priority: int = 0) -> Sequence:
    params = SamplingParams(max_tokens=work - 4)
    return Sequence.of(seq, Request([5] * 4, params, max_nodes=64, priority=priority, tenant=tenant))


def drained(queue: FairQueue) -> list[int]:
    served = []
    while (head := queue.peek()) is not None:
        assert queue.pop() is head
        served.append(head.seq)
    assert len(queue) == 0
    return served


def ahead_of(snapshot: QueueSnapshot, newcomer: Sequence) -> list[Sequence]:
    """The queued sequences that would be served before a newcomer."""
    return snapshot.sequences[: snapshot.n_ahead(newcomer)]


def test_a_tenant_alone_is_served_in_order() -> None:
    queue = FairQueue()
    for seq, work in enumerate((90, 10, 50, 10)):
        queue.push(request(seq, work=work))
    assert drained(queue) == [0, 1, 2, 3]


def test_a_single_request_does_not_wait_for_another_tenants_flood() -> None:
    queue = FairQueue()
    for seq in range(200):
        queue.push(request(seq, "flood"))
    assert [queue.pop().seq for _ in range(5)] == [0, 1, 2, 3, 4]
    queue.push(request(500, "other"))
    assert queue.pop().seq == 500


def test_tenants_share_by_work_not_by_number() -> None:
    queue = FairQueue()
    for seq in range(30):
        queue.push(request(seq, "large", work=60))
        queue.push(request(100 + seq, "small", work=20))
    first = drained(queue)[:40]
    assert sum(seq >= 100 for seq in first) == 30
    assert 9 <= sum(seq < 100 for seq in first) <= 11


def test_who_was_away_has_not_saved_anything_up() -> None:
    queue = FairQueue()
    for seq in range(50):
        queue.push(request(seq, "steady"))
    for _ in range(25):
        queue.pop()
    for seq in range(100, 120):
        queue.push(request(seq, "late"))
    served = drained(queue)[:20]
    assert 9 <= sum(seq >= 100 for seq in served) <= 11


def test_a_priority_comes_before_all_tenants_of_the_next() -> None:
    queue = FairQueue()
    queue.push(request(0, "a", priority=5))
    queue.push(request(1, "b", priority=0))
    queue.push(request(2, "b", priority=0))
    queue.push(request(3, "c", priority=-1))
    assert drained(queue) == [3, 1, 2, 0]


def test_interrupted_ones_keep_their_place() -> None:
    queue = FairQueue()
    for seq in (3, 4):
        queue.push(request(seq, "a"))
    queue.push_front(request(2, "b"))
    queue.push_front(request(1, "a"))
    queue.push_front(request(0, "a", priority=1))
    assert drained(queue) == [1, 2, 3, 4, 0]


def test_who_leaves_the_queue_is_not_charged() -> None:
    queue = FairQueue()
    leaving = [request(seq, "a", work=1000) for seq in range(5)]
    for one in leaving:
        queue.push(one)
    queue.push(request(10, "b"))
    queue.push(request(11, "b"))
    for one in leaving:
        queue.remove(one)
    queue.push(request(12, "a"))
    assert drained(queue)[:2] == [10, 12]
    with pytest.raises(ValueError):
        queue.remove(leaving[0])


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(5, 200), st.integers(0, 1), st.sampled_from(["push", "front", "pop"])
    ),
    max_size=40,
)


@given(ENTRIES, st.sampled_from("abcd"), st.integers(0, 1))
def test_the_order_foretold_is_the_order_served(
    entries: list[tuple[str, int, int, str]], tenant: str, priority: int
) -> None:
    queue = FairQueue()
    for seq, (name, work, level, action) in enumerate(entries):
        if action == "pop":
            if queue.peek() is not None:
                queue.pop()
        elif action == "push":
            queue.push(request(seq, name, work, level))
        else:
            queue.push_front(request(seq, name, work, level))
    newcomer = request(99, tenant, 50, priority)
    snapshot = queue.snapshot()
    foretold = [sequence.seq for sequence in snapshot.sequences]
    ahead = [sequence.seq for sequence in ahead_of(snapshot, newcomer)]
    assert len(queue) == len(foretold)
    queue.push(newcomer)
    served = drained(queue)
    assert [seq for seq in served if seq != 99] == foretold
    assert ahead == served[: served.index(99)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(5, 200)), min_size=2, max_size=60))
def test_no_tenant_falls_behind_by_more_than_a_request(entries: list[tuple[str, int]]) -> None:
    """While two tenants wait, what they were served differs by at most the largest request of either."""
    queue, waiting, served = FairQueue(), dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    for seq, (tenant, work) in enumerate(entries):
        queue.push(request(seq, tenant, work))
        waiting[tenant] += 1
    largest = max(work for _, work in entries)
    while queue.peek() is not None:
        one = queue.pop()
        waiting[one.request.tenant] -= 1
        served[one.request.tenant] += work_of(one)
        both = [served[tenant] for tenant in "abc" if waiting[tenant]]
        assert not both or max(both) - min(both) <= 2 * largest


@pytest.mark.parametrize("max_sequences", [1, 4])
def test_a_flood_delays_another_tenants_request_by_one_request(max_sequences: int) -> None:
    scheduler = Scheduler(INFO, SchedulerOptions(max_sequences=max_sequences))
    made = VirtualPipeline(scheduler, lambda step: 0.01)
    flood = [made.submit([5] * 10, 20, tenant="flood") for _ in range(200)]
    made.run(until=1.0)
    single = made.submit([5] * 10, 20, tenant="single")
    assert ahead_of(scheduler.snapshot_queue(), request(999, "third")) == [single]
    done = sum(one.state is State.FINISHED for one in flood)
    while single.state is not State.FINISHED:
        made.advance()
    assert sum(one.state is State.FINISHED for one in flood) - done <= 2 * max_sequences


def test_what_a_lost_router_had_begun_goes_on_before_fresh_prompts() -> None:
    scheduler = Scheduler(INFO, SchedulerOptions(max_sequences=1))
    made = VirtualPipeline(scheduler, lambda step: 0.01)
    made.submit([5] * 10, 20)
    made.run(until=0.05)
    fresh = [made.submit([5] * 10, 20) for _ in range(5)]
    begun = [made.submit([5] * 10, 20, emitted=[7] * 4) for _ in range(2)]
    while not all(one.state is State.FINISHED for one in begun):
        made.advance()
    assert {one.state for one in fresh[1:]} == {State.WAITING}
    assert fresh[0].n_cached == 0


def test_a_newcomer_knows_how_much_is_before_it() -> None:
    scheduler = Scheduler(INFO, SchedulerOptions(max_sequences=1))
    made = VirtualPipeline(scheduler, lambda step: 0.01)
    made.submit([5] * 10, 20, tenant="a")
    made.run(until=0.05)
    for _ in range(3):
        made.submit([5] * 10, 20, tenant="a")
    queued = scheduler.snapshot_queue()
    assert sum(map(work_of, ahead_of(queued, request(999, "a")))) == 90
    assert sum(map(work_of, ahead_of(queued, request(999, "b")))) == 30  # the first of a started where b would
    assert sum(map(work_of, ahead_of(queued, request(999, "b", priority=-1)))) == 0
