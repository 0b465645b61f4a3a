"""Which tests run in which of two processes (``make test``): those that start a Ray cluster in one, all others beside.

A cluster uses more than a core while it starts, so there is one at a time; and it takes long to start, so tests of one
file, which share theirs, stay together.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

CLUSTER = "cluster"
NAMES = {
    "test_retrieval_serve",
    "test_router_loss",
    "test_serve_end_to_end",
    "test_serve_handle",
    "test_serve_replicas",
    "test_serve_simulated",
    "test_several_nodes",
    "test_stage_replacement",
    "test_stopping",
}


def starts_a_cluster(nodeid: str) -> bool:
    """Whether the file of a test is one of them."""
    return PurePosixPath(nodeid.partition("::")[0]).stem in NAMES


class OneClusterAtATime(LoadScopeScheduling):
    """Tests with a cluster are one unit of work, the first; every other file is one."""

    def _split_scope(self, nodeid: str) -> str:
        return CLUSTER if starts_a_cluster(nodeid) else nodeid.partition("::")[0]
