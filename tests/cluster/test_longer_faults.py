"""Faults that last: a machine that no packet reaches any more, and the loss of the edge itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.cluster.conftest import JOBS, N_NODES, N_TOKENS
from tests.cluster.machines.spectra_machines import SpectraMachines, job
from tests.support.serve_application import is_running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.matrix


def test_a_machine_that_is_cut_off_for_good_is_given_up_and_comes_back_without_its_stages(
    site: SpectraMachines, wanted: list[list[int]]
) -> None:
    streams = site.streams(JOBS, N_TOKENS, until=50)
    lost = site.machine_of("Target")
    lost.cut()
    assert [stream.all_ids() for stream in streams] == wanted
    assert site.machine_of("Target") != lost
    site.application.until(is_running)
    served = site.application.replicas("Target", "Router", "Ingress")
    lost.heal()
    site.until_nodes(N_NODES)
    assert site.texts(JOBS, 100) == [ids[:100] for ids in wanted]
    assert site.application.replicas("Target", "Router", "Ingress") == served


def answer(site: SpectraMachines, number: int) -> list[int]:
    """Token ids of a job; none if its connection is lost."""
    try:
        said = site.http.post("/v1/completions", json=job(number, N_TOKENS) | {"return_token_ids": True})
    except httpx.TransportError:
        return []
    ids: list[int] = said.json()["choices"][0]["token_ids"] if said.is_success else []
    return ids


def test_clients_of_a_lost_edge_repeat_and_get_the_same_text(site: SpectraMachines, wanted: list[list[int]]) -> None:
    stages = site.application.replicas("Target")
    with ThreadPoolExecutor(len(JOBS)) as pool:
        asked = [pool.submit(answer, site, number) for number in JOBS]
        watched = site.streams(range(4, 5), 50, until=50)  # so all are under way
        site.machine_of("Ingress").kill()
        assert [one.result() for one in asked] == [[]] * len(JOBS)
    watched[0].join()
    site.start_worker("edge")
    ids = wait_until(lambda: answer(site, 0), site.said)
    assert [ids, *(answer(site, number) for number in JOBS[1:])] == wanted
    assert site.application.replicas("Target") == stages
