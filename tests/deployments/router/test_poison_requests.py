"""A sequence that the target never survives is found alone, and takes no other down with it."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.router.poison_requests import MAX_LOSSES, SUSPECTED, Losses, PoisonRequests, queue_order
from engine.scheduling.sequence import State
from tests.support.router_fakes import FakeScheduler, FakeSequence


def made(n: int) -> tuple[list[FakeSequence], FakeScheduler, Any]:
    sequences = [FakeSequence(seq) for seq in range(n)]
    scheduler = FakeScheduler(list(sequences))
    return sequences, scheduler, PoisonRequests(scheduler)  # type: ignore[arg-type]


def lose(poison: Any, *sequences: FakeSequence) -> list[FakeSequence]:
    """The pipeline is lost with these sequences in flight."""
    for sequence in sequences:
        sequence.in_flight = 0
    found: list[FakeSequence] = poison.lost(sequences)
    return found


def test_one_loss_means_nothing() -> None:
    [a, b], scheduler, poison = made(2)
    assert lose(poison, a, b) == []
    assert not poison.is_suspected(a)
    assert poison.may_send()
    assert scheduler.sequences == [a, b]


def test_a_suspected_sequence_runs_alone_and_the_others_come_back_once_it_gets_on() -> None:
    [a, b, c], scheduler, poison = made(3)
    for _ in range(SUSPECTED):
        lose(poison, a)
    assert poison.may_send()
    assert scheduler.sequences == [a]
    assert poison.held == [b, c]
    a.n_cached = 5
    poison.answered(a)
    assert poison.may_send()
    assert scheduler.sequences == [a, b, c]
    assert poison.held == []


def test_the_loss_while_it_ran_alone_finds_the_poison_request() -> None:
    [a, _], _, poison = made(2)
    assert [lose(poison, a) for _ in range(MAX_LOSSES)] == [[], [], [a]]


def test_of_several_suspects_the_first_in_the_queue_runs_and_the_next_only_when_it_is_cleared() -> None:
    [a, b, c], scheduler, poison = made(3)
    a.priority = 1
    for _ in range(SUSPECTED):
        lose(poison, a, b)
    assert poison.may_send()
    assert scheduler.sequences == [b]
    b.n_cached = 1
    poison.answered(b)
    assert poison.may_send()
    assert scheduler.sequences == [a]
    assert set(poison.held) == {b, c}


def test_nothing_is_sent_while_others_are_in_flight() -> None:
    [a, b], scheduler, poison = made(2)
    for _ in range(SUSPECTED):
        lose(poison, a)
    b.in_flight = 1
    assert not poison.may_send()
    assert scheduler.sequences == [a, b]
    b.in_flight = 0
    assert poison.may_send()
    assert scheduler.sequences == [a]


def test_progress_counts_only_beyond_the_position_of_the_losses() -> None:
    [a], _, poison = made(1)
    a.n_cached = 10
    lose(poison, a)
    a.n_cached = 4  # it is prefilled again
    poison.answered(a)
    lose(poison, a)
    assert poison.is_suspected(a)
    a.n_cached = 11
    poison.answered(a)
    assert not poison.is_suspected(a)
    assert lose(poison, a) == []


@pytest.mark.parametrize("over", [{"cancelled": True}, {"state": State.FINISHED}])
def test_sequences_that_are_over_are_not_counted(over: dict[str, Any]) -> None:
    [a], _, poison = made(1)
    for name, value in over.items():
        setattr(a, name, value)
    assert [lose(poison, a) for _ in range(MAX_LOSSES)] == [[], [], []]


def test_a_cancelled_suspect_releases_the_others() -> None:
    [a, b], scheduler, poison = made(2)
    for _ in range(SUSPECTED):
        lose(poison, a)
    assert poison.may_send()
    poison.forget(a)
    a.cancelled = True
    assert poison.may_send()
    assert scheduler.sequences == [a, b]


def test_a_held_sequence_that_ends_is_the_schedulers_again() -> None:
    [a, b], scheduler, poison = made(2)
    for _ in range(SUSPECTED):
        lose(poison, a)
    assert poison.may_send()
    poison.forget(b)
    assert poison.held == []
    assert scheduler.sequences == [a, b]


def test_losses_move_with_their_sequence() -> None:
    [a, b], scheduler, poison = made(2)
    for _ in range(SUSPECTED):
        lose(poison, a)
    assert poison.may_send()
    assert poison.withdraw(b) is None  # held back
    losses = poison.withdraw(a)
    assert losses == Losses(SUSPECTED, 0)
    assert (scheduler.sequences, poison.held) == ([], [])
    other = PoisonRequests(FakeScheduler([]))  # type: ignore[arg-type]
    other.adopt(a, losses)  # type: ignore[arg-type]
    assert lose(other, a) == [a]


def test_the_queues_order_is_priority_and_then_arrival() -> None:
    late, urgent, early = FakeSequence(3), FakeSequence(7, priority=-1), FakeSequence(1)
    assert sorted([late, urgent, early], key=queue_order) == [urgent, early, late]  # type: ignore[arg-type]
