"""One real server with the demo model, and one browser, for all tests of the pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.support.browser import Browser, browsing
from tests.support.chromium import need_chromium
from tests.support.server_process import Server, running

FLAGS = ("--stages", "2", "--speculator-actors", "1", "--kv-gib", "0.1", "--max-sequences", "8", "--grace", "2")
PICTURES = os.environ.get("PLAYGROUND_PICTURES")  # a folder: the pictures of docs/playground.md are written there


@pytest.fixture(scope="package")
def demo_server() -> Iterator[Server]:
    need_chromium()
    with running(Path("demo"), FLAGS) as server:
        yield server


@pytest.fixture(scope="package")
def window(demo_server: Server) -> Iterator[Browser]:
    with browsing(demo_server.base) as browser:
        yield browser


@pytest.fixture
def page(window: Browser) -> Iterator[Browser]:
    """The browser; a test fails on anything that its console calls an error."""
    window.logged()
    window.pictures = None if PICTURES is None else Path(PICTURES)
    yield window
    assert window.logged() == []
