"""The application on a head, an edge and machines for stages: what clients of the edge notice of faults elsewhere, and
of flags that an operator changes."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.cluster.conftest import GRACE, JOBS, N_NODES, N_TOKENS
from tests.cluster.machines.ray_machines import DASHBOARD
from tests.cluster.machines.redis_machine import RedisMachine
from tests.cluster.machines.spectra_machines import SpectraMachines, serve_config
from tests.support.serve_application import APPLICATIONS, is_running, replicas_of

pytestmark = pytest.mark.matrix

INTERRUPTION_S = 3.0
HEADLESS_S = 8.0
CROWD = range(32)


def test_an_operator_with_the_token_alone_deploys(site: SpectraMachines, wanted: list[list[int]]) -> None:
    places = {site.machine_of(name).name for name in ("Router", "Ingress")}
    assert places == {"edge"}
    assert site.machine_of("Target").name != "edge"
    assert [len(ids) for ids in wanted] == [N_TOKENS] * len(JOBS)
    for shown in ({}, {"Authorization": f"Bearer {'0' * 64}"}):
        stranger = site.client(site.head, DASHBOARD, headers=shown)
        for answer in (stranger.get(APPLICATIONS), stranger.put(APPLICATIONS, json=serve_config(model="other"))):
            assert answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
    assert is_running(site.application.application())


def test_a_cut_link_delays_streams_and_costs_nothing(site: SpectraMachines, wanted: list[list[int]]) -> None:
    before = site.application.replicas("Target", "Router", "Ingress")
    machine = site.machine_of("Target")  # asks the dashboard, which takes its time
    streams = site.streams(JOBS, N_TOKENS, until=50)
    machine.cut()
    time.sleep(INTERRUPTION_S)
    machine.heal()
    assert [stream.all_ids() for stream in streams] == wanted
    assert site.application.replicas("Target", "Router", "Ingress") == before


def test_streams_outlive_the_machine_of_target_and_first_stage(site: SpectraMachines, wanted: list[list[int]]) -> None:
    lost = site.machine_of("Target")
    streams = site.streams(JOBS, N_TOKENS, until=50)
    lost.kill()
    assert [stream.all_ids() for stream in streams] == wanted
    assert site.machine_of("Target") != lost
    site.application.until(is_running)
    site.start_worker(lost.name)
    site.until_nodes(N_NODES)


@pytest.mark.parametrize("has_redis", [True, False], ids=["head", "head and Redis"])
def test_without_a_head_streams_go_on_and_its_successor_finds_all_as_it_was(
    site: SpectraMachines,
    redis: RedisMachine,
    wanted: list[list[int]],
    has_redis: bool,
) -> None:
    before = site.application.replicas("Target", "Router", "Ingress")
    streams = site.streams(JOBS, N_TOKENS, until=50)
    if not has_redis:
        redis.machine.kill()
    site.head.kill()
    assert [stream.all_ids() for stream in streams] == wanted
    time.sleep(HEADLESS_S)
    assert site.texts(JOBS, 100) == [ids[:100] for ids in wanted]
    if not has_redis:
        redis.start()
    site.start_head()
    site.until_nodes(N_NODES)
    site.application.until(is_running)
    assert site.application.replicas("Target", "Router", "Ingress") == before
    assert site.texts(JOBS, 100) == [ids[:100] for ids in wanted]


def test_changed_flags_are_taken_over_where_the_application_runs(
    site: SpectraMachines, wanted: list[list[int]]
) -> None:
    names = ("Target", "Router", "Ingress")
    before = site.application.replicas(*names)
    undisturbed = site.texts(CROWD, 300)
    streams = site.streams(CROWD, 300, until=5)
    site.application.put(serve_config(max_sequences=40, **GRACE))
    site.application.until(lambda found: is_running(found) and not before & replicas_of(found, *names))
    assert [stream.all_ids() for stream in streams] == undisturbed
    assert site.texts(JOBS, N_TOKENS) == wanted
