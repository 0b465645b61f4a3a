"""A listener on each kind of socket, and handshakes that a slow machine does not break off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deployments.channels import async_channel, channel
from tests.support.listeners import Listener
from tests.support.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for half in (channel, async_channel):
        monkeypatch.setattr(half, "HANDSHAKE_S", LIMIT_S)


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    made = Listener(request.param)
    yield made
    made.close()
