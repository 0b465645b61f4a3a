"""Two pipelines, each on machines of its own, under 32 streams, when a machine is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines.net import Net
from tests.cluster.machines.spectra_machines import SpectraMachines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.matrix

STAGES = ("stage-1", "stage-2", "stage-3", "stage-4")
JOBS, N_TOKENS = range(32), 300


@pytest.fixture(scope="module")
def site(net: Net, logs: Path) -> Iterator[SpectraMachines]:
    with SpectraMachines(net, logs) as site:
        site.start(STAGES)
        yield site


@pytest.fixture(scope="module")
def wanted(site: SpectraMachines) -> list[list[int]]:
    """Undisturbed answers to the jobs, by two pipelines of two stages."""
    site.deploy(replicas=2, failover=2)
    until(site, lambda found: found["lanes_up"] == 2)
    return site.texts(JOBS, N_TOKENS)


def until(site: SpectraMachines, condition: Callable[[dict[str, Any]], object]) -> None:
    """Wait until the edge's health, of a router that answers, is as the condition asks."""

    def holds() -> bool:
        found = site.http.get("/health").json()
        return "lanes_up" in found and bool(condition(found))

    wait_until(holds, site.said)


def test_no_stream_of_32_fails_when_a_machine_of_one_of_two_pipelines_is_killed(
    site: SpectraMachines, wanted: list[list[int]]
) -> None:
    places = [site.machine_of(name).name for name in ("Target", "Target-2")]
    assert len(set(places)) == 2
    before = site.application.replicas("Target-2", "Router", "Ingress")
    streams = site.streams(JOBS, N_TOKENS, until=20)
    lost = site.machine_of("Target")
    lost.kill()
    assert [stream.all_ids() for stream in streams] == wanted
    until(site, lambda found: found["lanes_up"] == 1)
    site.start_worker(lost.name)
    site.until_nodes(2 + len(STAGES))
    until(site, lambda found: found["lanes_up"] == 2)
    assert site.application.replicas("Target-2", "Router", "Ingress") == before
    assert site.texts(JOBS, N_TOKENS) == wanted
