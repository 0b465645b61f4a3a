"""Of ``pytest -n 2``: one process runs the tests marked ``cluster``, the other one all files beside.

A Ray cluster uses more than a core while it starts, so there is one at a time; and it takes long to start, so tests of
one file, which share theirs, stay together. ``tests/conftest.py`` registers this plugin when pytest-xdist is there.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SUFFIX = "@cluster"  # of node ids, only between a worker and the scheduler: that is all the scheduler learns of a test


class OneClusterAtATime(LoadScopeScheduling):
    """Marked tests are one unit of work, the first; every other file is one."""

    def _split_scope(self, nodeid: str) -> str:
        return SUFFIX if nodeid.endswith(SUFFIX) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneClusterAtATime:
    """Keeps the order of the collection, in which marked tests are first."""
    config.option.loadscopereorder = False
    return OneClusterAtATime(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Any:
    """While a worker reports what it collected, node ids of marked tests carry the suffix."""
    plain = {item: item.nodeid for item in session.items if item.get_closest_marker("cluster")}
    for item, nodeid in plain.items():
        item._nodeid = nodeid + SUFFIX
    result = yield
    for item, nodeid in plain.items():
        item._nodeid = nodeid
    return result
