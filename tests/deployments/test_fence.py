"""Who may use a pipeline when two routers want it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deployments.fence import ROUTER_EPOCH, Fence, SupersededError


def test_a_later_router_shuts_earlier_ones_out_for_good() -> None:
    fence = Fence()
    fence.admit(5)
    fence.admit(5)  # the same one connects again
    fence.admit(9)
    for _ in range(2):
        with pytest.raises(SupersededError):
            fence.admit(5)
    fence.admit(9)


def test_who_says_nothing_of_its_age_shuts_nobody_out_and_is_let_in() -> None:
    fence = Fence()
    fence.admit(0)
    fence.admit(5)
    fence.admit(0)
    fence.admit(5)


def test_two_routers_that_fight_over_a_new_pipeline_settle_on_the_later_one() -> None:
    """The owner was replaced and has forgotten both; each asks again whenever the other took the pipeline."""
    fence, left, holder = Fence(), set[int](), 0
    for asking in [5, 9, 5, 9, 5]:
        try:
            fence.admit(asking)
            holder = asking
        except SupersededError:
            left.add(asking)
    assert (holder, left) == (9, {5})


def test_a_process_that_starts_later_is_a_later_router_and_leaves_at_once_when_told() -> None:
    code = (
        "from deployments.fence import ROUTER_EPOCH, SupersededError, leave\n"
        "print(ROUTER_EPOCH, flush=True)\nleave(SupersededError('x'))\nprint('still here')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert int(done.stdout) > ROUTER_EPOCH
