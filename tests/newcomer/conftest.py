"""One server with a tiny model in place of the default one, and one browser, for all tests of this folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.inputs.default_model import DEFAULT_MODEL, NO_DRAFTER
from tests.support.browser import PROGRAMS, Browser, browsing
from tests.support.lacking import lacking
from tests.support.server_process import SpectraServer, running
from tests.support.tiny_models import tiny_default_model

FLAGS = ("--stages", "2", "--speculator-actors", "1", "--kv-gib", "0.1", "--max-sequences", "8", "--grace", "2")
PICTURES = os.environ.get(
    "PLAYGROUND_PICTURES"
)  # the folder to which tests write the pictures of docs/reference/playground.md


@pytest.fixture(scope="session")
def tiny_default() -> dict[str, str]:
    """Variables with which the default model of a process is a tiny one; none for pictures, which show the real one.

    The bundled drafter was trained for the real one.
    """
    return {} if PICTURES else {"PYTHONPATH": str(tiny_default_model()), "SPECTRA_DRAFTER": NO_DRAFTER}


@pytest.fixture(scope="package")
def server(tiny_default: dict[str, str]) -> Iterator[SpectraServer]:
    """A pipeline of two stages with a tiny model in place of the default one."""
    with running(Path(DEFAULT_MODEL), FLAGS, environment=tiny_default) as server:
        yield server
        assert server.process.poll() is None, server.log.read_text()


@pytest.fixture(scope="package")
def window() -> Iterator[Browser]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        lacking(f"{' and '.join(missing)} not found: apt-get install chromium chromium-driver")
    with browsing("") as browser:
        browser.pictures = None if PICTURES is None else Path(PICTURES)
        yield browser


@pytest.fixture
def page(window: Browser, server: SpectraServer) -> Iterator[Browser]:
    """The browser at the server's pages; a test fails on every error in its console."""
    window.base = server.base
    window.logged()
    yield window
    assert window.logged() == []
