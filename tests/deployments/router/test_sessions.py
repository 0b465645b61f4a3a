"""Every live request has a mailbox, and metrics hear of each event once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.router.sessions import Session, Sessions
from engine.errors import TargetLostError
from engine.events import LENGTH, StepEvent
from tests.support.router_fakes import FakeLane, FakeSequence


class Metrics:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.prompted: list[int] = []
        self.n_aborts = 0

        self.engines = {"lane": self}

    def count_event(self, event: StepEvent, since_last: float, prompted: int) -> None:
        assert since_last >= 0
        self.prompted.append(prompted)

    def count_abort(self) -> None:
        self.n_aborts += 1


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def sessions(metrics: Metrics) -> Sessions:
    return Sessions(metrics)  # type: ignore[arg-type]


def opened(sessions: Sessions, seq: int = 0, n_output: int = 0) -> Session:
    sequence: Any = FakeSequence(seq, n_output=n_output)
    sequence.n_prompt = 7
    return sessions.open(sequence, FakeLane())  # type: ignore[arg-type]


def progress(session: Session, finish: str | None = None) -> Any:
    return SimpleNamespace(sequence=session.sequence, event=StepEvent(token_ids=[5], finish_reason=finish))


def test_events_reach_their_own_mailbox_and_the_prompt_is_counted_once(sessions: Sessions, metrics: Metrics) -> None:
    one, other = opened(sessions), opened(sessions, 1)
    sessions.deliver([progress(one)])
    sessions.deliver([progress(one, LENGTH)])
    assert (one.mailbox.qsize(), other.mailbox.qsize()) == (2, 0)
    assert (one.is_over, other.is_over) == (True, False)
    assert metrics.prompted == [7, 0]


def test_the_prompt_of_a_resumed_request_was_counted_by_the_router_before(sessions: Sessions, metrics: Metrics) -> None:
    sessions.deliver([progress(opened(sessions, n_output=3))])
    assert metrics.prompted == [0]


def test_steps_without_an_event_and_closed_sessions_are_skipped(sessions: Sessions, metrics: Metrics) -> None:
    session = opened(sessions)
    sessions.deliver([SimpleNamespace(sequence=session.sequence, event=None)])  # type: ignore[list-item]
    sessions.close(session)
    sessions.deliver([progress(session)])
    assert metrics.prompted == []
    assert sessions.lane_of(session.sequence) is None


def test_only_a_stream_that_closes_before_its_end_counts_as_an_abort(sessions: Sessions, metrics: Metrics) -> None:
    ended, cancelled = opened(sessions), opened(sessions, 1)
    sessions.deliver([progress(ended, LENGTH)])
    sessions.close(ended)
    assert metrics.n_aborts == 0
    sessions.close(cancelled)
    assert metrics.n_aborts == 1
    assert len(sessions) == 0


def test_errors_go_to_one_stream_or_to_all(sessions: Sessions) -> None:
    one, other = opened(sessions), opened(sessions, 1)
    error = TargetLostError("gone")
    sessions.fail(one.sequence, error)
    assert (one.mailbox.get_nowait(), other.mailbox.qsize()) == (error, 0)
    sessions.fail_all(error)
    assert (one.mailbox.get_nowait(), other.mailbox.get_nowait()) == (error, error)
    sessions.close(one)
    sessions.fail(one.sequence, error)  # without effect
    assert one.mailbox.empty()


def test_a_sequence_is_in_the_lane_it_was_moved_to_last(sessions: Sessions) -> None:
    session, lane = opened(sessions), FakeLane()
    sessions.move(session.sequence, lane)  # type: ignore[arg-type]
    assert sessions.lane_of(session.sequence) is session.lane is lane  # type: ignore[comparison-overlap]
    sessions.close(session)
    sessions.move(session.sequence, FakeLane())  # type: ignore[arg-type]  # without effect
    assert session.lane is lane  # type: ignore[comparison-overlap]
