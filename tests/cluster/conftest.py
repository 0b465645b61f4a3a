"""Machines of namespaces, which need root and a few commands; in CI they are there, or the tests fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.machines.namespaces import lacking, require
from tests.cluster.machines.net import Net
from tests.cluster.machines.redis_machine import RedisMachine, binary
from tests.cluster.machines.spectra_machines import SpectraMachines

JOBS, N_TOKENS = range(4), 600  # of the clients
STAGES = ("stage-1", "stage-2", "spare")
N_NODES = 2 + len(STAGES)  # a head and an edge with them
GRACE = {"grace": 5}  # seconds; streams outlast it


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    """A network without machines."""
    require()
    with Net() as net:
        yield net


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for what programs on machines say."""
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def redis(net: Net, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> RedisMachine:
    """The manifests' Redis, on a machine with a volume; the network ends it."""
    if not binary():
        lacking("redis-server with TLS (redis-server)")
    return RedisMachine(net, logs, tmp_path_factory.mktemp("volume"))


@pytest.fixture(scope="module")
def site(net: Net, logs: Path, redis: RedisMachine) -> Iterator[SpectraMachines]:
    """The application on two of three machines for stages, behind an edge; a Redis keeps what its head knows."""
    with SpectraMachines(net, logs, redis) as site:
        site.start(STAGES)
        site.deploy(**GRACE)
        yield site


@pytest.fixture(scope="module")
def wanted(site: SpectraMachines) -> list[list[int]]:
    """Undisturbed answers to the jobs."""
    return site.texts(JOBS, N_TOKENS)
