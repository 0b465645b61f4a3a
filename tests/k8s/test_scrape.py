"""A real Prometheus scrapes a real server with two ingresses: boards have data, rules are evaluated, sums are right."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.support.metrics import OF_RETRIEVAL, documented, exposed
from tests.support.prometheus import (
    FOREIGN,
    Prometheus,
    grouped_by,
    metric_names,
    program,
    redis_exporter,
    with_variables,
)
from tests.support.redis_server import RedisServer
from tests.support.retrieval_service import eventually
from tests.support.server_process import FLAGS, Server, running
from tools.monitoring.files import BOARDS, RULES

pytestmark = [pytest.mark.cluster, pytest.mark.lengthy]

MORE = ("--replicas", "2", "--ingress-replicas", "2", "--log-level", "debug", "--live", "learner")
DRAFTED = {"max_tokens": 30, "temperature": 0, "logit_bias": {"9": 100}}
N_REQUESTS = 12
AT_THE_EDGE = 'spectra:http_requests_total{job="spectra", route="/v1/completions"}'
IN_THE_ROUTER = 'vllm:request_success_total{job="spectra"}'
TWICE = 'ALERTS{alertname="SpectraScrapedTwice"}'


@dataclass
class Site:
    """A server that has served, and who asks it how it fares."""

    server: Server
    prometheus: Prometheus
    exporter: str

    def scrape(self, *pods: str) -> None:
        """Ask the server's one address, and again for every name of a pod, as a PodMonitor would."""
        address = f"127.0.0.1:{self.server.port}"
        of_pods = [{"targets": [address], "labels": {"pod": pod}} for pod in pods]
        https = {"scheme": "https", "tls_config": {"ca_file": f"{self.server.folder}/authority.pem"}}
        jobs: list[dict[str, Any]] = [
            {"job_name": "spectra", "static_configs": [{"targets": [address]}], **https},
            {"job_name": "redis", "static_configs": [{"targets": [self.exporter]}]},
        ]
        jobs += [{"job_name": "pods", "static_configs": of_pods, **https}] if pods else []
        self.prometheus.scrape(jobs)

    def complete(self, **fields: Any) -> httpx.Response:
        """Over a connection of its own: the proxy takes one ingress, then the other."""
        with httpx.Client(base_url=self.server.base, timeout=240, verify=self.server.trust) as client:
            return client.post("/v1/completions", json={"model": "tiny", "prompt": "Snow falls", **fields})

    def sum(self, series: str) -> float:
        return self.prometheus.number(f"sum({series})")

    def reaches(self, series: str, number: float) -> None:
        eventually(lambda: self.sum(series) == number, within=240, pause=0.2)


@pytest.fixture(scope="module")
def site(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, authority = tmp_path_factory.mktemp("prometheus"), trustme.CA()
    program("prometheus")  # missed now, and not when all else has started
    with RedisServer() as redis, redis_exporter(redis.url) as exporter:
        store = ("--retrieval", redis.url, "--retrieval-cache", str(folder / "cache"))
        with running(tiny_checkpoint, (*FLAGS, *MORE, *store), authority) as server:
            authority.cert_pem.write_to_path(f"{server.folder}/authority.pem")
            site = Site(server, Prometheus(folder, RULES), exporter)
            try:
                site.scrape()
                yield site
            finally:
                site.prometheus.close()


def test_sums_are_those_of_both_ingresses_however_often_either_is_asked(site: Site) -> None:
    eventually(lambda: site.prometheus.number("spectra:pipelines_up") == 2, within=240, pause=0.2)
    for _ in range(N_REQUESTS):
        assert site.complete(**DRAFTED, speculative={"method": "pld"}).status_code == 200
    logs = [path for path in site.server.folder.rglob("replica_*Ingress*") if path.suffix == ".log"]
    assert len(logs) == 2

    def both_said(what: str) -> Callable[[], bool]:
        return lambda: all(what in log.read_text() for log in logs)

    eventually(both_said("POST /v1/completions 200"), within=240, pause=0.2)
    eventually(both_said("GET /metrics 200"), within=240, pause=0.2)
    for series in (AT_THE_EDGE, IN_THE_ROUTER, 'spectra:tenant_requests_total{job="spectra"}'):
        site.reaches(series, N_REQUESTS)
    eventually(lambda: site.prometheus.number(f"count_over_time({AT_THE_EDGE}[1m])") > 8, within=240, pause=0.2)
    assert site.prometheus.number(f"resets({AT_THE_EDGE}[1m])") == 0  # no scrape has less than the one before
    assert site.prometheus.number('min_over_time(up{job="spectra"}[8s])') == 1


def test_every_expression_of_the_boards_has_data(site: Site) -> None:
    assert site.complete(temperature=3).status_code == 400
    for method in ("pld", "auto", "auto"):
        assert site.complete(**DRAFTED, speculative={"method": method}).status_code == 200
    missing = [with_variables(query.expr) for board in BOARDS for panel in board.panels for query in panel.queries]

    def all_answered() -> bool:
        missing[:] = [expression for expression in missing if not site.prometheus.query(expression)]
        return not missing

    with contextlib.suppress(AssertionError):
        eventually(all_answered, within=240, pause=1.0)
    assert not missing


def test_what_boards_group_by_are_labels(site: Site) -> None:
    for board in BOARDS:
        for expression in (with_variables(query.expr) for panel in board.panels for query in panel.queries):
            labels = set[str]()
            for name in metric_names(expression):
                series, _ = site.prometheus.query(name)[0]
                labels |= set(series)
            assert grouped_by(expression) <= labels, expression


def test_every_rule_is_evaluated_and_nothing_fires(site: Site) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in site.prometheus.ask("rules")["groups"] for rule in group["rules"]]

    eventually(lambda: {rule["health"] for rule in rules()} == {"ok"}, within=240, pause=0.2)
    names = {name for rule in rules() for name in metric_names(rule["query"])}
    absent = {name for name in names if not site.prometheus.query(f"count({name})")}
    assert not absent
    assert not site.prometheus.query('ALERTS{alertstate="firing"}')


def test_the_manuals_list_what_prometheus_is_told(site: Site) -> None:
    text = site.server.http.get("/metrics").text
    assert exposed(text) == documented() | documented(OF_RETRIEVAL)
    stored = site.prometheus.ask("label/job/values")
    assert stored == ["redis", "spectra"]
    assert any(name.startswith(FOREIGN) for name in site.prometheus.ask("label/__name__/values"))


def test_the_certificate_that_clients_see_is_the_one_whose_end_is_told(site: Site) -> None:
    left = "spectra:certificate_expiration_timestamp_seconds - time()"
    found = [(labels["certificate"], value) for labels, value in site.prometheus.query(left)]
    assert [kind for kind, _ in found] == ["https"]
    assert math.isfinite(found[0][1])
    assert found[0][1] > 0


def test_a_scrape_of_every_pod_doubles_sums_and_is_noticed(site: Site) -> None:
    assert not site.prometheus.query(TWICE)
    site.scrape("edge-0", "edge-1")
    once = site.sum(AT_THE_EDGE)
    site.reaches(AT_THE_EDGE.replace('job="spectra"', 'job="pods"'), 2 * once)
    eventually(lambda: bool(site.prometheus.query(TWICE)), within=240, pause=0.2)
