"""A running cluster gets the documented Serve config file by ``serve deploy``, then changed ones while streams run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.support.ray_head import RayHead
from tests.support.server_process import READY_S, Stream

pytestmark = pytest.mark.cluster

FILE = Path(__file__).parents[3] / "docs" / "serve.yaml"
METHODS = ("autoregressive", "pld", "spectra-core", "auto")


class Site:
    """What ``serve deploy`` makes of a cluster."""

    def __init__(self, head: RayHead) -> None:
        self.head = head
        self.http = httpx.Client(base_url=head.url, timeout=60)
        self.config = yaml.safe_load(FILE.read_text())

    def changed(self, deployments: dict[str, dict[str, Any]], **args: Any) -> dict[str, Any]:
        """The config of now with other options of deployments, and other args."""
        config: dict[str, Any] = deepcopy(self.config)
        application = config["applications"][0]
        application["args"] |= args
        options = {one["name"]: one for one in application["deployments"]}
        for name, given in deployments.items():
            options[name] = options.get(name, {"name": name}) | given
        application["deployments"] = [*options.values()]
        return config

    def application(self) -> dict[str, Any]:
        """What Serve says of it."""
        url = f"{self.head.dashboard}/api/serve/applications/"
        found: dict[str, Any] = httpx.get(url, headers=self.head.headers, timeout=60).json()
        application: dict[str, Any] = found["applications"]["spectra"]
        return application

    def replicas(self, *names: str) -> set[str]:
        """Ids of the replicas of deployments."""
        deployments = self.application()["deployments"]
        return {one["replica_id"] for name in names for one in deployments[name]["replicas"]}

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until Serve says of the application what the condition asks for."""
        deadline = time.monotonic() + READY_S
        while not condition(found := self.application()):
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


def is_running(application: dict[str, Any]) -> bool:
    return bool(application["status"] == "RUNNING")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with RayHead() as head:
        head.deploy(FILE)
        site = Site(head)
        site.until(is_running)
        yield site
        site.http.close()


def job(number: int) -> dict[str, Any]:
    sampling = {"temperature": 0.8 if number % 2 else 0.0, "seed": number, "ignore_eos": True}
    method = {"speculative": {"method": METHODS[number % 4]}}
    return {"model": "demo", "prompt": f"Question {number}: what", "max_tokens": 500} | sampling | method


def test_router_and_ingress_are_replaced_under_streams_and_no_text_changes(site: Site) -> None:
    wanted = [stream.all_ids() for stream in [Stream(site, **job(number)) for number in range(8)]]
    before = site.replicas("Router", "Ingress")
    assert len(before) == 3
    streams = [Stream(site, **job(number)) for number in range(8)]
    for stream in streams:
        stream.until(5)
    other = {"ray_actor_options": {"num_cpus": 0.11}}
    site.config = site.changed({"Router": other, "Ingress": other})
    site.head.deploy(site.config)
    site.until(lambda found: is_running(found) and not before & site.replicas("Router", "Ingress"))
    assert [stream.all_ids() for stream in streams] == wanted
    assert Stream(site, **job(3)).all_ids() == wanted[3]
    assert site.http.get("/ready").status_code == httpx.codes.OK


def test_a_config_that_cannot_be_is_refused_with_the_reason_and_the_old_one_serves_on(site: Site) -> None:
    before = site.replicas("Router", "Ingress", "Target")
    site.head.deploy(site.changed({}, modle="demo"))
    site.until(lambda found: "modle is unknown; model is meant?" in found["message"])
    assert site.application()["status"] == "DEPLOY_FAILED"
    site.head.deploy(site.changed({"Router": {"num_replicas": 2}}))
    refused = "Router.num_replicas is 2; it must be 1"
    site.until(lambda found: refused in found["deployments"].get("Router", {}).get("message", ""))
    assert before <= site.replicas("Router", "Ingress", "Target")
    assert len(Stream(site, **job(1)).all_ids()) == 500
