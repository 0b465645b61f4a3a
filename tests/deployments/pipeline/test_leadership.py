"""Who may use a pipeline when two routers want it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deployments.pipeline.leadership import INCARNATION, Fence, SupersededError


def test_a_later_router_shuts_earlier_ones_out_for_good() -> None:
    fence = Fence()
    fence.admit("first", ready=True)
    fence.admit("first", ready=True)  # the same one connects again
    fence.admit("second", ready=False)
    fence.admit("second", ready=True)
    for ready in (True, False):
        with pytest.raises(SupersededError):
            fence.admit("first", ready)
    fence.admit("second", ready=True)


def test_who_came_first_counts_and_not_what_routers_are_called() -> None:
    """Incarnations are random, and clocks of nodes differ: neither says who is later."""
    for names in (["a", "b"], ["b", "a"]):
        fence = Fence()
        for name in names:
            fence.admit(name, ready=True)
        with pytest.raises(SupersededError):
            fence.admit(names[0], ready=True)
        fence.admit(names[1], ready=True)


def test_a_router_that_fails_before_it_is_ready_shuts_nobody_out() -> None:
    fence = Fence()
    fence.admit("healthy", ready=True)
    for _ in range(3):
        fence.admit("fails in its constructor", ready=False)
        fence.admit("healthy", ready=True)


def test_an_older_router_that_is_ready_late_does_not_shut_a_newer_one_out() -> None:
    fence = Fence()
    fence.admit("old", ready=False)
    fence.admit("new", ready=False)
    fence.admit("old", ready=True)
    fence.admit("new", ready=True)
    with pytest.raises(SupersededError):
        fence.admit("old", ready=True)


def test_who_says_nothing_of_itself_shuts_nobody_out_and_is_let_in() -> None:
    fence = Fence()
    fence.admit("", ready=True)
    fence.admit("router", ready=True)
    fence.admit("", ready=True)
    fence.admit("router", ready=True)


def test_two_routers_that_fight_over_a_new_pipeline_settle_on_one() -> None:
    """The owner was replaced and has forgotten both; each asks again whenever the other took the pipeline."""
    fence, left = Fence(), set[str]()
    for asking in ["old", "new", "old", "new", "old"]:
        try:
            fence.admit(asking, ready=True)
            holder = asking
        except SupersededError:
            left.add(asking)
    assert (holder, left) == ("new", {"old"})


def test_should_the_wrong_router_have_come_last_its_victims_successor_is_later_still() -> None:
    fence = Fence()
    fence.admit("serving", ready=True)
    fence.admit("woken up", ready=True)
    with pytest.raises(SupersededError):
        fence.admit("serving", ready=True)  # it leaves, and Serve starts another
    fence.admit("its successor", ready=True)
    with pytest.raises(SupersededError):
        fence.admit("woken up", ready=True)


def test_every_process_is_another_router_and_leaves_at_once_when_told() -> None:
    code = (
        "from deployments.pipeline.leadership import INCARNATION, SupersededError, leave\n"
        "print(INCARNATION, flush=True)\nleave(SupersededError('x'))\nprint('still here')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert len(done.stdout.strip()) == len(INCARNATION) == 32
    assert done.stdout.strip() != INCARNATION
