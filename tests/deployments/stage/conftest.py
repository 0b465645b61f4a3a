"""Neighbouring stages, and timeouts that a slow machine does not reach."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deployments.stage.links import negotiation, process_group
from deployments.transport import async_channel, channel
from tests.deployments.slow_stage import Gate, Gated
from tests.deployments.stage.link_peers import Peers
from tests.support.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (channel, "HANDSHAKE_S"),
        (async_channel, "HANDSHAKE_S"),
        (negotiation, "ANSWER_S"),
        (process_group, "WAIT_S"),
        (process_group, "BUILD_S"),
    ):
        monkeypatch.setattr(module, name, LIMIT_S)


@pytest.fixture
def peers(request: pytest.FixtureRequest) -> Iterator[Peers]:
    made = Peers(getattr(request, "param", "unix"))
    yield made
    made.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Of the ``Gated`` stages, open before and after the test."""
    Gated.gate.open()
    yield Gated.gate
    Gated.gate.open()
