"""A listener on each kind of socket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from deployments.transport.addresses import tcp
from tests.support.listeners import Listener


@pytest.fixture(params=["unix", "tcp", "tcp6"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    with tempfile.TemporaryDirectory(prefix="ch-") as folder:
        made = Listener({"unix": f"unix:{folder}/s", "tcp": tcp("127.0.0.1"), "tcp6": tcp("::1")}[request.param])
        yield made
        made.close()
