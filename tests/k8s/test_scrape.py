"""A real Prometheus scrapes a real server with two ingresses: sums are right, boards have data, rules are evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.k8s.prometheus import (
    FOREIGN,
    Prometheus,
    board_expressions,
    grouped_by,
    metric_names,
    program,
    redis_exporter,
)
from tests.support.metrics import documented, documented_of_retrieval, exposed
from tests.support.redis_server import RedisServer
from tests.support.server_process import FLAGS, SpectraServer, running
from tests.support.waiting import LIMIT_S, wait_until
from tools.monitoring.files import RULES

pytestmark = pytest.mark.matrix

MORE = ("--replicas", "2", "--ingress-replicas", "2", "--log-level", "debug", "--live", "learner")
DRAFTED = {"max_tokens": 30, "temperature": 0, "logit_bias": {"9": 100}}
N_REQUESTS = 12
AT_THE_EDGE = 'spectra:http_requests_total{job="spectra", route="/v1/completions"}'
IN_THE_ROUTER = 'vllm:request_success_total{job="spectra"}'


@dataclass
class ScrapedServer:
    """A server that has answered requests, and the Prometheus that scrapes it."""

    server: SpectraServer
    prometheus: Prometheus

    def complete(self, **fields: Any) -> httpx.Response:
        """Send a request over a connection of its own: the proxy takes one ingress, then the other."""
        with httpx.Client(base_url=self.server.base, timeout=LIMIT_S, verify=self.server.trust) as client:
            return client.post("/v1/completions", json={"model": "tiny", "prompt": "Snow falls", **fields})

    def sum(self, series: str) -> float:
        return self.prometheus.number(f"sum({series})")

    def wait_for_sum(self, series: str, number: float) -> None:
        wait_until(lambda: self.sum(series) == number, lambda: f"{series}: {self.sum(series)}, not {number}")


@pytest.fixture(scope="module")
def site(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedServer]:
    folder, authority = tmp_path_factory.mktemp("prometheus"), trustme.CA()
    program("prometheus")  # missing programs end the tests before anything has started
    with RedisServer() as redis, redis_exporter(redis.url) as exporter:
        store = ("--retrieval", redis.url, "--retrieval-cache", str(folder / "cache"))
        with running(tiny_checkpoint, (*FLAGS, *MORE, *store), authority) as server:
            authority.cert_pem.write_to_path(f"{folder}/authority.pem")
            tls = {"scheme": "https", "tls_config": {"ca_file": f"{folder}/authority.pem"}}
            targets = {"spectra": (f"127.0.0.1:{server.port}", tls), "redis": (exporter, {})}
            jobs = [
                {"job_name": name, "static_configs": [{"targets": [address]}], **options}
                for name, (address, options) in targets.items()
            ]
            with Prometheus(folder, RULES, jobs) as prometheus:
                yield ScrapedServer(server, prometheus)


def test_sums_count_the_requests_of_both_ingresses_once(site: ScrapedServer) -> None:
    wait_until(lambda: site.prometheus.number("spectra:pipelines_up") == 2)
    for _ in range(N_REQUESTS):
        assert site.complete(**DRAFTED, speculative={"method": "pld"}).status_code == 200
    logs = [path for path in site.server.folder.rglob("replica_*Ingress*") if path.suffix == ".log"]
    assert len(logs) == 2
    for line in ("POST /v1/completions 200", "GET /metrics 200"):
        wait_until(lambda line=line: all(line in log.read_text() for log in logs), f"not in both logs: {line}")
    for series in (AT_THE_EDGE, IN_THE_ROUTER, 'spectra:tenant_requests_total{job="spectra"}'):
        site.wait_for_sum(series, N_REQUESTS)
    assert site.prometheus.number(f"resets({AT_THE_EDGE}[1m])") == 0


def test_every_expression_of_the_boards_has_data_with_the_labels_it_groups_by(site: ScrapedServer) -> None:
    assert site.complete(temperature=3).status_code == 400
    for method in ("pld", "auto", "auto"):
        assert site.complete(**DRAFTED, speculative={"method": method}).status_code == 200
    missing = board_expressions()

    def all_answered() -> bool:
        missing[:] = [expression for expression in missing if not site.prometheus.query(expression)]
        return not missing

    wait_until(all_answered, lambda: missing)
    for expression in board_expressions():
        labels = {label for name in metric_names(expression) for label in site.prometheus.query(name)[0][0]}
        assert grouped_by(expression) <= labels, expression


def test_every_rule_is_evaluated_and_none_fires(site: ScrapedServer) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in site.prometheus.ask("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: {rule["health"] for rule in rules()} == {"ok"}, rules)
    names = {name for rule in rules() for name in metric_names(rule["query"])}
    assert [name for name in names if not site.prometheus.query(f"count({name})")] == []
    assert not site.prometheus.query('ALERTS{alertstate="firing"}')


def test_the_manuals_list_every_metric_that_is_scraped(site: ScrapedServer) -> None:
    assert exposed(site.server.http.get("/metrics").text) == documented() | documented_of_retrieval()
    assert site.prometheus.ask("label/job/values") == ["redis", "spectra"]
    assert any(name.startswith(FOREIGN) for name in site.prometheus.ask("label/__name__/values"))
    left = site.prometheus.query("spectra:certificate_expiration_timestamp_seconds - time()")
    assert [(labels["certificate"], value > 0) for labels, value in left] == [("https", True)]
