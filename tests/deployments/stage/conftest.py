"""Fixtures of stages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from deployments.transport.addresses import tcp
from tests.support.link_peers import Peers


@pytest.fixture(params=["unix", "tcp", "tcp6"])
def peers(request: pytest.FixtureRequest) -> Iterator[Peers]:
    with tempfile.TemporaryDirectory(prefix="ln-") as folder:
        made = Peers({"unix": f"unix:{folder}/s", "tcp": tcp("127.0.0.1"), "tcp6": tcp("::1")}[request.param])
        yield made
        made.close()
