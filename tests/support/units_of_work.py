"""How ``pytest -n 2`` divides tests: a file is run by one process, and so are the files of a folder ``one_server``."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling


class UnitsOfWork(LoadFileScheduling):
    """Keeps the files that share a server together."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return str(file.parent if file.parent.name == "one_server" else file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitsOfWork:
    """Keep the order of the collection, in which slow tests come first."""
    config.option.loadscopereorder = False
    return UnitsOfWork(config, log)
