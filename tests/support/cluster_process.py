"""Of ``pytest -n 3``: one process runs the files with tests marked ``cluster``, the others all files beside.

A Ray cluster uses more than a core while it starts, so there is one at a time; and it takes long to start, so tests of
one file, which share theirs, stay together. Those marked ``machines`` are the second process's first work. Both wait
often, for processes to start and to be missed, which is why there is a process more than cores; what runs beside them
takes what they leave of the processors, because the others would wait for the clusters in the end.
``tests/conftest.py`` registers this plugin when pytest-xdist is there.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

MARK = "pytest.mark.cluster"
MACHINES = "pytest.mark.machines"
NICENESS = 5  # of a process, and those it starts, once it runs tests without a cluster: a third of the others' share
HAS_YIELDED = pytest.StashKey[bool]()


class OneClusterAtATime(LoadScopeScheduling):
    """Files with tests of one mark are one unit of work, the first and the second; every other file is one."""

    def _split_scope(self, nodeid: str) -> str:
        return self._unit_of(nodeid.partition("::")[0])

    @cache  # noqa: B019  # there is one scheduler
    def _unit_of(self, file: str) -> str:
        """From the text: workers tell the scheduler the ids of tests, not their markers."""
        text = (self.config.rootpath / file).read_text()
        return next((mark for mark in (MACHINES, MARK) if mark in text), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneClusterAtATime:
    """Keeps the order of the collection."""
    config.option.loadscopereorder = False
    return OneClusterAtATime(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Give way to clusters from a worker's first test without one on; before its fixtures, which start processes."""
    stash, is_worker = item.config.stash, hasattr(item.config, "workerinput")
    if is_worker and HAS_YIELDED not in stash and not item.get_closest_marker("cluster"):
        stash[HAS_YIELDED] = True
        os.nice(NICENESS)
