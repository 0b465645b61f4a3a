"""A listener on each kind of socket, and handshakes that a slow machine does not break off."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from deployments.transport import async_channel, channel
from deployments.transport.addresses import tcp
from tests.support.listeners import Listener
from tests.support.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for half in (channel, async_channel):
        monkeypatch.setattr(half, "HANDSHAKE_S", LIMIT_S)


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    with tempfile.TemporaryDirectory(prefix="ch-") as folder:
        made = Listener({"unix": f"unix:{folder}/s", "tcp": tcp("127.0.0.1"), "tcp6": tcp("::1")}[request.param])
        yield made
        made.close()
