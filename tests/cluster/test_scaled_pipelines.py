"""Pipelines that come on other machines with the load, and go with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines.net import Net
from tests.cluster.machines.spectra_machines import SpectraMachines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.matrix

JOBS, N_TOKENS = range(32), 200
STAGES = ("stage-1", "stage-2", "stage-3")  # a pipeline of one stage each
BOUNDS = {"min_replicas": 1, "max_replicas": 3, "scale_up_delay": 1, "scale_down_delay": 4}
ROOM = {"max_sequences": 4, "max_wait": 600}  # of a pipeline; seconds that the busiest machine may let a request wait


@pytest.fixture(scope="module")
def site(net: Net, logs: Path) -> Iterator[SpectraMachines]:
    with SpectraMachines(net, logs) as site:
        site.start(STAGES)
        site.deploy(stages=1, grace=1, **BOUNDS, **ROOM)
        yield site


def health(site: SpectraMachines) -> dict[str, Any]:
    found: dict[str, Any] = site.http.get("/health").json()
    return found


def test_pipelines_follow_the_load_from_one_machine_to_three_and_back(site: SpectraMachines) -> None:
    first, router = site.application.replicas("Target"), health(site)["router_pid"]
    rounds = [site.streams(JOBS, N_TOKENS)]
    places = set[str]()

    def all_up_under_load() -> bool:
        if not any(stream.is_running for stream in rounds[-1]):
            rounds.append(site.streams(JOBS, N_TOKENS))
        return bool(health(site).get("lanes_up") == len(STAGES))

    wait_until(all_up_under_load, lambda: health(site))
    names = ("Target", "Target-2", "Target-3")
    places |= {site.machine_of(name).name for name in names}
    assert places == set(STAGES)
    texts = [[stream.all_ids() for stream in streams] for streams in rounds]
    wait_until(lambda: health(site).get("lanes_up") == 1 and site.application.replicas(*names) == first)
    assert health(site)["router_pid"] == router
    alone = site.texts(JOBS, N_TOKENS)
    assert texts == [alone] * len(rounds)
