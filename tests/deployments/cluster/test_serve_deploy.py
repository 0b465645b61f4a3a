"""``serve deploy`` of the documented config file on a running cluster, then of changed ones while streams run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.resilience.observation import find_processes
from tests.deployments.cluster.serve_site import ServeSite
from tests.support.ray_head import RayHead
from tests.support.serve_application import is_running, replicas_of
from tests.support.server_process import StreamedCompletion
from tests.support.tiny_models import saved_checkpoint
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.cluster

ENVIRONMENT = {  # so that HAProxy learns of replicas from Serve and from failed requests, not from health checks
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",  # that a replica takes requests while it drains
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "600",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "600s",
}
METHODS = ("autoregressive", "pld", "spectra-core", "auto")


@pytest.fixture(scope="module")
def site() -> Iterator[ServeSite]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        head = RayHead()
    with head:
        site = ServeSite(head)
        head.deploy(site.config)
        site.until(is_running)
        yield site
        site.close()


def http_ports(processes: list[psutil.Process]) -> list[int]:
    """Return the ports on which ingresses serve HTTP."""
    found = []
    for process in processes:
        for listener in process.net_connections("tcp4"):
            if listener.status == psutil.CONN_LISTEN:
                with contextlib.suppress(httpx.TransportError):  # of another protocol
                    if httpx.get(f"http://127.0.0.1:{listener.laddr.port}/ping").status_code == httpx.codes.OK:
                        found.append(listener.laddr.port)
    return found


def watched(port: int) -> list[tuple[int, int]]:
    """Return the statuses of /ready and /health of one ingress until it refuses connections."""
    found = []
    while True:
        with contextlib.suppress(httpx.ReadError, httpx.RemoteProtocolError):  # just as it stops listening
            try:
                ready, health = (
                    httpx.get(f"http://127.0.0.1:{port}/{name}", timeout=LIMIT_S) for name in ("ready", "health")
                )
            except httpx.ConnectError:
                return found
            found.append((ready.status_code, health.status_code))
        time.sleep(0.05)


def job(number: int) -> dict[str, Any]:
    sampling = {"temperature": 0.8 if number % 2 else 0.0, "seed": number, "ignore_eos": True}
    method = {"speculative": {"method": METHODS[number % 4]}}
    return {"model": "tiny", "prompt": f"Question {number}: what", "max_tokens": 500} | sampling | method


@pytest.fixture(scope="module")
def expected(site: ServeSite) -> list[list[int]]:
    """Undisturbed answers to the jobs, by number."""
    return [stream.all_ids() for stream in [StreamedCompletion(site, **job(number)) for number in range(8)]]


def test_router_and_ingress_are_replaced_under_streams(site: ServeSite, expected: list[list[int]]) -> None:
    before = site.replicas("Router", "Ingress")
    assert len(before) == 3
    streams = [StreamedCompletion(site, **job(number)) for number in range(8)]
    for stream in streams:
        stream.until(5)
    other = {"ray_actor_options": {"num_cpus": 0.11}}
    site.config = site.changed({"Router": other, "Ingress": other})
    site.head.deploy(site.config)
    site.until(lambda found: is_running(found) and not before & replicas_of(found, "Router", "Ingress"))
    assert [stream.all_ids() for stream in streams] == expected
    assert StreamedCompletion(site, **job(3)).all_ids() == expected[3]
    assert site.http.get("/ready").status_code == httpx.codes.OK


@pytest.mark.matrix  # needs a look at an ingress while it drains
def test_a_draining_ingress_is_not_ready_and_a_proxy_that_does_not_know_asks_another(site: ServeSite) -> None:
    [manager] = find_processes(site.head.pid, "Serve's proxy")
    ports, before = http_ports(find_processes(site.head.pid, "ingress")), site.replicas("Ingress")
    assert len(ports) == len(before) == 2
    site.config = site.changed({"Ingress": {"ray_actor_options": {"num_cpus": 0.12}}})
    with ThreadPoolExecutor(2) as pool:
        seen = [pool.submit(watched, port) for port in ports]
        manager.suspend()  # HAProxy knows the two that drain and no other
        try:
            site.head.deploy(site.config)
            for looks in seen:
                assert (503, 200) in looks.result(LIMIT_S)
            statuses = [httpx.get(f"{site.head.url}/v1/models", timeout=LIMIT_S).status_code for _ in range(8)]
        finally:
            manager.resume()
    assert statuses == [httpx.codes.OK] * 8
    site.until(lambda found: is_running(found) and not before & replicas_of(found, "Ingress"))


def test_a_wrong_config_is_refused_with_the_reason_and_the_old_one_serves(site: ServeSite) -> None:
    before = site.replicas("Router", "Ingress", "Target")
    site.head.deploy(site.changed({}, modle="tiny"))
    site.until(lambda found: "modle is unknown; did you mean model?" in found["message"])
    assert site.application()["status"] == "DEPLOY_FAILED"
    site.head.deploy(site.changed({"Router": {"num_replicas": 2}}))
    refused = "Router.num_replicas is 2; it must be 1"
    site.until(lambda found: refused in found["deployments"].get("Router", {}).get("message", ""))
    assert before <= site.replicas("Router", "Ingress", "Target")
    assert len(StreamedCompletion(site, **job(1)).all_ids()) == 500


def test_a_text_is_finished_by_the_model_that_began_it_or_ends_in_an_error(
    site: ServeSite, expected: list[list[int]]
) -> None:
    served = site.model_hash
    streams = [StreamedCompletion(site, **job(number)) for number in range(8)]
    for stream in streams:
        stream.until(5)
    site.config = site.changed({"Ingress": {"num_replicas": 1}}, model=str(saved_checkpoint(400)))
    site.head.deploy(site.config)
    site.until(lambda found: is_running(found) and site.model_hash not in ("", served))
    for stream, ids in zip(streams, expected, strict=True):
        stream.join()
        had = stream.token_ids
        assert had == ids[: len(had)]
        assert [error["code"] for error in stream.errors] == ([] if had == ids else ["model_changed"])
    assert StreamedCompletion(site, **job(0)).all_ids() != expected[0]
