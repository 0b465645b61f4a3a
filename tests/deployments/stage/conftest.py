"""Neighbouring stages, and timeouts that a slow machine does not reach."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deployments.slow_stage import ForwardGate, Gated
from tests.deployments.stage.transport_peers import Peers


@pytest.fixture(autouse=True)
def patient(slow_peers: None) -> None:
    """Every test of this folder has slow peers."""


@pytest.fixture
def peers(request: pytest.FixtureRequest) -> Iterator[Peers]:
    made = Peers(getattr(request, "param", "unix"))
    yield made
    made.close()


@pytest.fixture
def gate() -> Iterator[ForwardGate]:
    """Of the ``Gated`` stages, open before and after the test."""
    Gated.gate.open()
    yield Gated.gate
    Gated.gate.open()
