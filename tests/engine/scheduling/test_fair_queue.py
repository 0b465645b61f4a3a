"""Tenants take turns, priorities come first, and the flood of one tenant delays no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.fair_queue import FairQueue, QueueSnapshot, work_of
from engine.scheduling.scheduler import Scheduler, SchedulerOptions
from engine.scheduling.sequence import Sequence, SequenceState
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


def pushed(*requests: Sequence) -> FairQueue:
    queue = FairQueue()
    for one in requests:
        queue.push(one)
    return queue


def test_tenants_and_priorities_take_turns() -> None:
    assert drained(pushed(*(request(seq, work=work) for seq, work in enumerate((90, 10, 50, 10))))) == [0, 1, 2, 3]
    assert drained(pushed(*(request(seq, "abc"[seq % 3], priority=5 - seq) for seq in range(4)))) == [3, 2, 1, 0]
    flood = pushed(*(request(seq, "flood") for seq in range(8)))
    for _ in range(5):
        flood.pop()
    flood.push(request(50, "other"))
    assert drained(flood) == [50, 5, 6, 7]


def test_preempted_requests_keep_their_place_and_removed_ones_cost_nothing() -> None:
    preempted = pushed(request(3, "a"), request(4, "a"))
    for one in (request(2, "b"), request(1, "a"), request(0, "a", priority=1)):
        preempted.push_front(one)
    assert drained(preempted) == [1, 2, 3, 4, 0]
    removed = [request(seq, "a", work=1000) for seq in range(5)]
    queue = pushed(*removed, request(10, "b"), request(11, "b"))
    for one in removed:
        queue.remove(one)
    with pytest.raises(ValueError):
        queue.remove(removed[0])
    queue.push(request(12, "a"))
    assert drained(queue) == [10, 12, 11]


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(5, 200), st.integers(0, 1), st.sampled_from(["push", "front", "pop"])
    ),
    max_size=40,
)


@given(ENTRIES, st.sampled_from("abcd"), st.integers(0, 1))
def test_the_predicted_order_is_the_order_of_service(
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
    predicted = [sequence.seq for sequence in snapshot.sequences]
    ahead = [sequence.seq for sequence in ahead_of(snapshot, newcomer)]
    assert len(queue) == len(predicted)
    queue.push(newcomer)
    served = drained(queue)
    assert [seq for seq in served if seq != 99] == predicted
    assert ahead == served[: served.index(99)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(5, 200)), min_size=2, max_size=60))
def test_no_waiting_tenant_is_served_less_than_another_by_more_than_a_request(entries: list[tuple[str, int]]) -> None:
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
    scheduler = Scheduler(BatchingPolicy(INFO, SchedulerOptions(max_sequences=max_sequences)))
    made = VirtualPipeline(scheduler, lambda step: 0.01)
    flood = [made.submit([5] * 10, 20, tenant="flood") for _ in range(100)]
    made.run(until=1.0)
    single = made.submit([5] * 10, 20, tenant="single")
    queued = scheduler.snapshot_queue()
    assert ahead_of(queued, request(999, "third")) == [single]
    assert ahead_of(queued, request(999, "third", priority=-1)) == []
    assert len(ahead_of(queued, request(999, "flood"))) == len(queued.sequences)
    done = sum(one.state is SequenceState.FINISHED for one in flood)
    while single.state is not SequenceState.FINISHED:
        made.advance()
    assert sum(one.state is SequenceState.FINISHED for one in flood) - done <= 2 * max_sequences


def test_a_resumed_request_is_served_before_new_ones() -> None:
    scheduler = Scheduler(BatchingPolicy(INFO, SchedulerOptions(max_sequences=1)))
    made = VirtualPipeline(scheduler, lambda step: 0.01)
    made.submit([5] * 10, 20)
    made.run(until=0.05)
    fresh = [made.submit([5] * 10, 20) for _ in range(5)]
    resumed = [made.submit([5] * 10, 20, emitted=[7] * 4) for _ in range(2)]
    while not all(one.state is SequenceState.FINISHED for one in resumed):
        made.advance()
    assert {one.state for one in fresh[1:]} == {SequenceState.WAITING}
    assert fresh[0].n_cached == 0


def test_a_stream_of_new_tenants_neither_starves_an_old_one_nor_fills_memory() -> None:
    queue, n_pops = FairQueue(), 1000
    for seq in range(10):
        queue.push(request(seq, f"new {seq}"))
    waited: list[int] = []
    asked = 0
    queue.push(request(10**6, "again"))
    for pop in range(n_pops):
        if queue.pop().request.tenant == "again":
            waited.append(pop - asked)
            asked = pop
            queue.push(request(10**6 + pop, "again"))
        else:
            queue.push(request(10 + pop, f"new {10 + pop}"))
        assert len(queue._levels[0].starts) <= 8 * 11, "tenants that left are forgotten"
    assert len(waited) > n_pops / 33
    assert max(waited) <= 33, "three rounds of all tenants that wait"
