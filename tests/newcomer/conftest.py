"""An installed wheel and a server that it started, for all tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.paths import DEMO
from tests.support.installation import build_wheel, install
from tests.support.server_process import Server


@pytest.fixture(scope="package")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="package")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``spectra`` of an environment with the wheel."""
    return install(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="package")
def server(installed: Path) -> Iterator[Server]:
    """The demo model, served by the installed wheel, started outside of the checkout."""
    with tempfile.TemporaryDirectory(prefix="fs-") as folder:
        started = Server(Path(DEMO), Path(folder), (), program=installed)
        try:
            assert started.first_line.startswith("Ready: "), started.log.read_text()
            yield started
        finally:
            started.close()
