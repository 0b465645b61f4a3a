"""Who may use a pipeline when two routers want it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from deployments.pipeline.leadership import INCARNATION, NO_ROUTER, LeaderEpochs, RouterStatus, SupersededError


def admitted(asking: Sequence[tuple[str, bool]]) -> list[bool]:
    """Whether each of these routers, in this order, is admitted; it is ready or not."""
    epochs, found = LeaderEpochs(), list[bool]()
    for name, ready in asking:
        try:
            epochs.admit(RouterStatus(name, ready))
            found.append(True)
        except SupersededError:
            found.append(False)
    return found


def test_a_later_router_shuts_earlier_ones_out_for_good() -> None:
    epochs = LeaderEpochs()
    epochs.admit(RouterStatus("first", True))
    epochs.admit(RouterStatus("first", True))  # the same one connects again
    epochs.admit(RouterStatus("second", False))
    epochs.admit(RouterStatus("second", True))
    for ready in (True, False):
        with pytest.raises(SupersededError):
            epochs.admit(RouterStatus("first", ready))
    epochs.admit(RouterStatus("second", True))


def test_who_came_first_counts_and_not_what_routers_are_called() -> None:
    """Incarnations are random and clocks of nodes differ: neither says which router is the later one."""
    for names in (["a", "b"], ["b", "a"]):
        epochs = LeaderEpochs()
        for name in names:
            epochs.admit(RouterStatus(name, True))
        with pytest.raises(SupersededError):
            epochs.admit(RouterStatus(names[0], True))
        epochs.admit(RouterStatus(names[1], True))


def test_a_router_that_fails_before_it_is_ready_supersedes_no_other() -> None:
    asking = [("healthy", True), *3 * [("fails in its constructor", False), ("healthy", True)]]
    assert admitted(asking) == len(asking) * [True]


def test_an_older_router_that_is_ready_late_does_not_shut_a_newer_one_out() -> None:
    epochs = LeaderEpochs()
    epochs.admit(RouterStatus("old", False))
    epochs.admit(RouterStatus("new", False))
    epochs.admit(RouterStatus("old", True))
    epochs.admit(RouterStatus("new", True))
    with pytest.raises(SupersededError):
        epochs.admit(RouterStatus("old", True))


def test_a_router_without_incarnation_supersedes_no_other_and_is_admitted() -> None:
    assert admitted([("", True), ("router", True), ("", True), ("router", True)]) == [True] * 4


def test_two_routers_that_fight_over_a_new_pipeline_settle_on_one() -> None:
    """The owner was replaced and has forgotten both; each asks again whenever the other took the pipeline."""
    epochs, left = LeaderEpochs(), set[str]()
    for asking in ["old", "new", "old", "new", "old"]:
        try:
            epochs.admit(RouterStatus(asking, True))
            holder = asking
        except SupersededError:
            left.add(asking)
    assert (holder, left) == ("new", {"old"})


def test_in_an_upgrade_the_new_router_leads_the_new_pipeline_though_the_old_one_asks_last() -> None:
    epochs = LeaderEpochs()
    epochs.admit(RouterStatus("new", False))
    epochs.admit(RouterStatus("old", True, True))  # may serve until the new one is ready
    epochs.admit(RouterStatus("new", True))
    with pytest.raises(SupersededError):
        epochs.admit(RouterStatus("old", True, True))
    epochs.admit(RouterStatus("new", True, True))


def test_the_owner_knows_the_router_that_serves() -> None:
    epochs, first = LeaderEpochs(), RouterStatus("first", is_ready=True)
    epochs.admit(RouterStatus("fails before it is ready"))
    assert epochs.leader == NO_ROUTER
    epochs.admit(first)
    epochs.admit(RouterStatus("second"))
    assert epochs.leader == first


def test_should_the_wrong_router_have_come_last_its_victims_successor_is_later_still() -> None:
    epochs = LeaderEpochs()
    epochs.admit(RouterStatus("serving", True))
    epochs.admit(RouterStatus("woken up", True))
    with pytest.raises(SupersededError):
        epochs.admit(RouterStatus("serving", True))  # it leaves, and Serve starts another
    epochs.admit(RouterStatus("its successor", True))
    with pytest.raises(SupersededError):
        epochs.admit(RouterStatus("woken up", True))


def test_every_process_is_another_router_and_leaves_at_once_when_told() -> None:
    code = (
        "from deployments.pipeline.leadership import INCARNATION, SupersededError, exit_superseded\n"
        "print(INCARNATION, flush=True)\nexit_superseded(SupersededError('x'))\nprint('still here')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (1, "exiting: x\n")
    assert len(done.stdout.strip()) == len(INCARNATION) == 32
    assert done.stdout.strip() != INCARNATION
