"""Which router may use a pipeline when two routers ask for it."""

from __future__ import annotations

import os

import pytest

from deployments.pipeline.leadership import (
    NO_ROUTER,
    LeaderEpochs,
    RouterStatus,
    SupersededError,
    exit_superseded,
)

# A letter is a router that asks for the pipeline: "a" before it is ready, "A" once it is, "A*" if it has led before,
# "?" without an incarnation. "-A" is refused.
CASES = {
    "a later router shuts earlier ones out for good": "A A b B -A -a B",
    # Incarnations are random and clocks of nodes differ: neither says which router is the later one.
    "the order of arrival counts, not the names": "Z A -Z A",
    "a router that fails before it is ready supersedes no other": "A b A b A b A",
    "an older router that is ready late does not shut a newer one out": "a b A B -A",
    "a router without an incarnation supersedes no other": "? A ? A",
    # The owner was replaced and has forgotten both; each asks again whenever the other took the pipeline.
    "two routers that fight over a new pipeline settle on one": "A B -A B -A",
    # In an upgrade the old router may serve until the new one is ready.
    "the new router leads a new pipeline although the old one asks last": "b A* B -A* B*",
    # The one that was shut out leaves, and Serve starts another.
    "the successor of a router that was shut out is later still": "A B -A C -B",
}


@pytest.mark.parametrize("asking", CASES.values(), ids=CASES.keys())
def test_the_latest_router_that_was_ready_leads(asking: str) -> None:
    epochs = LeaderEpochs()
    for word in asking.split():
        letter = word.strip("-*")
        status = RouterStatus(letter.lower().strip("?"), letter.isupper() or letter == "?", "*" in word)
        if word[0] == "-":
            with pytest.raises(SupersededError):
                epochs.admit(status)
        else:
            epochs.admit(status)


def test_the_owner_knows_the_router_that_serves() -> None:
    epochs, first = LeaderEpochs(), RouterStatus("first", is_ready=True)
    epochs.admit(RouterStatus("fails before it is ready"))
    assert epochs.leader == NO_ROUTER
    epochs.admit(first)
    epochs.admit(RouterStatus("second"))
    assert epochs.leader == first


def test_a_superseded_router_exits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    exit_superseded(SupersededError("x"))
    assert codes == [1]
