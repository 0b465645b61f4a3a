"""A sequence that the target never survives is found alone, and ends no other."""

from __future__ import annotations

from typing import Any

from deployments.router.poison_requests import MAX_LOSSES, SUSPECTED, Losses, PoisonRequests
from engine.scheduling.sequence import SequenceState
from tests.deployments.router.router_fakes import FakeScheduler, FakeSequence


def made(n: int) -> tuple[list[FakeSequence], FakeScheduler, Any]:
    sequences = [FakeSequence(seq) for seq in range(n)]
    scheduler = FakeScheduler(list(sequences))
    return sequences, scheduler, PoisonRequests(scheduler)  # type: ignore[arg-type]


def suspect(poison: Any, *sequences: FakeSequence) -> None:
    """Lose the pipeline with these sequences in flight until they are suspected."""
    for _ in range(SUSPECTED):
        assert poison.on_loss(sequences) == []


def test_one_loss_holds_nothing_back_and_the_loss_of_a_sequence_alone_finds_it() -> None:
    [a, b, cancelled, finished], scheduler, poison = made(4)
    cancelled.cancelled, finished.state = True, SequenceState.FINISHED  # are over, and count no loss
    assert poison.on_loss([a, b, cancelled, finished]) == []
    assert not poison.is_suspected(a)
    assert poison.may_send()
    assert scheduler.sequences == [a, b, cancelled, finished]
    assert [poison.on_loss([a, cancelled, finished]) for _ in range(MAX_LOSSES - 1)] == [[], [a]]


def test_a_suspected_sequence_runs_alone_until_it_makes_progress() -> None:
    [a, b, c], scheduler, poison = made(3)
    suspect(poison, a)
    b.in_flight = 1
    assert not poison.may_send()  # with another in flight nothing is sent
    assert scheduler.sequences == [a, b]
    b.in_flight = 0
    assert poison.may_send()
    assert (scheduler.sequences, poison.held) == ([a], [c, b])
    a.n_cached = 5
    poison.on_progress(a)
    assert poison.may_send()
    assert (scheduler.sequences, poison.held) == ([a, b, c], [])


def test_of_several_suspects_the_first_in_the_queue_runs_and_the_next_once_it_is_cleared() -> None:
    [a, b, c], scheduler, poison = made(3)
    a.priority = 1
    suspect(poison, a, b)
    assert poison.may_send()
    assert scheduler.sequences == [b]
    b.n_cached = 1
    poison.on_progress(b)
    assert poison.may_send()
    assert scheduler.sequences == [a]
    assert set(poison.held) == {b, c}


def test_progress_counts_only_beyond_the_position_of_the_losses() -> None:
    [a], _, poison = made(1)
    for a.n_cached in (10, 4):  # it is prefilled again
        poison.on_progress(a)
        poison.on_loss([a])
    assert poison.is_suspected(a)
    a.n_cached = 11
    poison.on_progress(a)
    assert not poison.is_suspected(a)
    assert poison.on_loss([a]) == []


def test_sequences_are_the_schedulers_again_once_they_or_the_suspect_end() -> None:
    [a, b, c], scheduler, poison = made(3)
    suspect(poison, a)
    assert poison.may_send()
    poison.forget(b)  # held, and ends
    assert (poison.held, scheduler.sequences) == ([c], [a, b])
    poison.forget(a)
    a.cancelled = True
    assert poison.may_send()
    assert scheduler.sequences == [a, b, c]


def test_losses_move_with_their_sequence() -> None:
    [a, b], scheduler, poison = made(2)
    suspect(poison, a)
    assert poison.may_send()
    assert poison.withdraw(b) is None  # held back
    losses = poison.withdraw(a)
    assert losses == Losses(SUSPECTED, 0)
    assert (scheduler.sequences, poison.held) == ([], [])
    other: Any = PoisonRequests(FakeScheduler([]))  # type: ignore[arg-type]
    other.adopt(a, losses)
    assert other.on_loss([a]) == [a]
