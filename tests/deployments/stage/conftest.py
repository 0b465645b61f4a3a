"""Fixtures of stages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.support.link_peers import Peers


@pytest.fixture(params=["unix", "tcp"])
def peers(request: pytest.FixtureRequest) -> Iterator[Peers]:
    with tempfile.TemporaryDirectory(prefix="ln-") as folder:
        made = Peers(f"unix:{folder}/s" if request.param == "unix" else "tcp:127.0.0.1:0")
        yield made
        made.close()
