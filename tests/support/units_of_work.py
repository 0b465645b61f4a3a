"""How ``pytest -n 2`` divides tests: one process runs a file, and all files of a folder that share a server."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

SHARE_A_SERVER = {"one_server", "newcomer"}  # folders


class UnitsOfWork(LoadFileScheduling):
    """Keeps the files that share a server together."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return next((folder for folder in file.parts if folder in SHARE_A_SERVER), str(file))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitsOfWork:
    """Keep the order of the collection, in which slow tests come first."""
    config.option.loadscopereorder = False
    return UnitsOfWork(config, log)
