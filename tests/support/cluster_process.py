"""Of ``pytest -n 2``: one process runs the files with tests marked ``cluster``, the other one all files beside.

A Ray cluster uses more than a core while it starts, so there is one at a time; and it takes long to start, so tests of
one file, which share theirs, stay together. ``tests/conftest.py`` registers this plugin when pytest-xdist is there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

MARK = "pytest.mark.cluster"


class OneClusterAtATime(LoadScopeScheduling):
    """Files with marked tests are one unit of work, the first; every other file is one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return MARK if self._is_marked(file) else file

    @cache  # noqa: B019  # there is one scheduler
    def _is_marked(self, file: str) -> bool:
        """From the text: workers tell the scheduler the ids of tests, not their markers."""
        return MARK in (self.config.rootpath / file).read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneClusterAtATime:
    """Keeps the order of the collection, in which marked tests are first."""
    config.option.loadscopereorder = False
    return OneClusterAtATime(config, log)
