"""A listener on each kind of socket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.support.listeners import Listener


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    with tempfile.TemporaryDirectory(prefix="ch-") as folder:
        made = Listener(f"unix:{folder}/s" if request.param == "unix" else "tcp:127.0.0.1:0")
        yield made
        made.close()
