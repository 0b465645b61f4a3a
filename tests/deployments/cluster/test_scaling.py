"""Pipelines join and leave a running application, as its config or the load asks for: no text differs, none fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from benchmarks.resilience.observation import find_processes
from tests.deployments.cluster.serve_site import ServeSite
from tests.support.ray_head import RayHead
from tests.support.serve_application import is_running
from tests.support.server_process import StreamedCompletion
from tests.support.waiting import wait_until

pytestmark = pytest.mark.matrix

STREAMS = 32
METHODS = ("autoregressive", "pld", "spectra-core", "auto")
SCALED = {"min_replicas": 1, "max_replicas": 3, "scale_up_delay": 1, "scale_down_delay": 4}


@pytest.fixture(scope="module")
def site() -> Iterator[ServeSite]:
    with RayHead() as head:
        site = ServeSite(head)
        site.config = site.changed({"Ingress": {"num_replicas": 1}}, **SCALED, grace=1, max_sequences=4)
        head.deploy(site.config)
        site.until(is_running)
        yield site
        site.close()


def job(number: int) -> dict[str, Any]:
    sampling = {"temperature": 0.8 if number % 2 else 0.0, "seed": number, "ignore_eos": True}
    method = {"speculative": {"method": METHODS[number % 4]}}
    return {"model": "tiny", "prompt": f"Question {number}: what", "max_tokens": 200} | sampling | method


def streams(site: ServeSite) -> list[StreamedCompletion]:
    return [StreamedCompletion(site, **job(number)) for number in range(STREAMS)]


@pytest.fixture(scope="module")
def wanted(site: ServeSite) -> list[list[int]]:
    """Undisturbed answers, with one pipeline, to all jobs."""
    bound(site, 1, 1)
    return [stream.all_ids() for stream in streams(site)]


def bound(site: ServeSite, least: int, most: int) -> None:
    """Deploy a config that asks for other bounds; it names none where they are those of ``args``."""
    site.config = site.changed({"Router": {"user_config": {"min_replicas": least, "max_replicas": most}}})
    if (least, most) == (1, 3):
        [router] = [one for one in site.config["applications"][0]["deployments"] if one["name"] == "Router"]
        del router["user_config"]
    site.head.deploy(site.config)


def health(site: ServeSite) -> dict[str, Any]:
    found: dict[str, Any] = site.http.get("/health").json()
    return found


def lanes(site: ServeSite, wanted: int) -> None:
    """Wait until so many pipelines are wanted, and so many are connected."""
    wait_until(
        lambda: (health(site).get("lanes"), health(site).get("lanes_up")) == (wanted, wanted), lambda: health(site)
    )


def stages(site: ServeSite) -> set[int]:
    return {process.pid for process in find_processes(site.head.pid, "stages")}


def test_a_config_changes_the_number_of_pipelines_in_place_under_streams(
    site: ServeSite, wanted: list[list[int]]
) -> None:
    [first], router = stages(site), health(site)["router_pid"]
    before = site.replicas("Router", "Ingress", "Target")
    for least, most in ((2, 2), (1, 1)):
        running = streams(site)
        for stream in running[:4]:
            stream.until(5)
        bound(site, least, most)
        lanes(site, least)
        assert first in stages(site)
        assert [stream.all_ids() for stream in running] == wanted
        site.until(is_running)
    assert site.replicas("Router", "Ingress", "Target") == before
    assert health(site)["router_pid"] == router
    wait_until(lambda: stages(site) == {first}, lambda: stages(site))
    site.until(lambda found: not found["deployments"]["Target-2"]["replicas"])


def test_the_number_of_pipelines_follows_the_load_and_one_is_killed_meanwhile(
    site: ServeSite, wanted: list[list[int]]
) -> None:
    [first], router = stages(site), health(site)["router_pid"]
    bound(site, 1, 3)
    rounds = [streams(site)]

    def has(n: int) -> bool:
        """Whether so many pipelines are up; the load lasts until then."""
        if not any(stream.is_running for stream in rounds[-1]):
            rounds.append(streams(site))
        return bool(health(site).get("lanes_up") == n)

    wait_until(lambda: has(2) or has(3), lambda: health(site))
    psutil.Process(next(iter(stages(site) - {first}))).kill()
    wait_until(lambda: has(3), lambda: health(site))
    assert 'spectra:pipelines_wanted{model_name="tiny"} 3.0' in site.http.get("/metrics").text
    for running in rounds:
        assert [stream.all_ids() for stream in running] == wanted
    lanes(site, 1)
    wait_until(lambda: stages(site) == {first}, lambda: (stages(site), health(site)))
    assert health(site)["router_pid"] == router
    assert StreamedCompletion(site, **job(3)).all_ids() == wanted[3]
    assert is_running(site.application())


def test_a_router_that_is_lost_is_followed_by_one_that_wants_the_same_pipelines(
    site: ServeSite, wanted: list[list[int]]
) -> None:
    bound(site, 2, 2)
    lanes(site, 2)
    before, running = stages(site), streams(site)
    for stream in running[:4]:
        stream.until(5)
    [router] = find_processes(site.head.pid, "router")
    router.kill()
    assert [stream.all_ids() for stream in running] == wanted
    lanes(site, 2)
    assert health(site)["router_pid"] != router.pid
    assert stages(site) == before
