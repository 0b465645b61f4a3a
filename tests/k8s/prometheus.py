"""PromQL of dashboards and rules, and a real Prometheus and Redis exporter, as Debian packages them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import promql_parser

from benchmarks.support.server_process import free_port
from tests.support.lacking import lacking
from tests.support.waiting import LIMIT_S, wait_until
from tools.monitoring.files import BOARDS

FOREIGN = ("redis_",)  # metrics of the exporter begin so


def program(name: str) -> str:
    """Return the program's path; end the test if it is missing."""
    found = shutil.which(name)
    if found is None:
        lacking(f"{name} is not in the PATH; install Debian's prometheus and prometheus-redis-exporter")
    return found


def board_expressions() -> list[str]:
    """Return all expressions of the boards as Grafana sends them."""
    written = [query.expr for board in BOARDS for panel in board.panels for query in panel.queries]
    return [one.replace("$__rate_interval", "1m").replace("$model_name", ".*") for one in written]


def metric_names(expression: str) -> set[str]:
    """Return the metrics of all selectors of a PromQL expression; raise ValueError when it does not parse."""
    return {selector.name for selector in _nodes(expression, promql_parser.VectorSelector)}


def grouped_by(expression: str) -> set[str]:
    """Return the labels that its aggregations keep."""
    modifiers = (node.modifier for node in _nodes(expression, promql_parser.AggregateExpr))
    kept = (each.labels for each in modifiers if each and each.type == promql_parser.AggModifierType.By)
    return {label for labels in kept for label in labels}


def _nodes(expression: str, kind: type) -> list[Any]:
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression), lambda node: found.append(node))
    return [node for node in found if isinstance(node, kind)]


class Prometheus:
    """A server on 127.0.0.1 that scrapes every job once a second and keeps its data in ``folder``."""

    def __init__(self, folder: Path, rules: Path, jobs: list[dict[str, Any]]) -> None:
        address = f"127.0.0.1:{free_port()}"
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": [str(rules)], "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._log = folder / "log"
        self._http = httpx.Client(base_url=f"http://{address}", timeout=LIMIT_S)
        command = [program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--web.listen-address={address}"]
        with self._log.open("wb") as log:
            stored = f"--storage.tsdb.path={folder}/data"
            self._process = subprocess.Popen([*command, stored], stdout=log, stderr=log)

    def __enter__(self) -> Self:
        wait_until(self._is_ready, self._log.read_text)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, endpoint: str, **parameters: str) -> Any:
        """Return ``data`` of an answer of the API."""
        answer = self._http.get(f"/api/v1/{endpoint}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and values of an expression now."""
        return [(each["metric"], float(each["value"][1])) for each in self.ask("query", query=expression)["result"]]

    def number(self, expression: str) -> float:
        """Return the value of an expression with one series; NaN if it has none."""
        found = self.query(expression)
        assert len(found) < 2, found
        return found[0][1] if found else float("nan")


@contextmanager
def redis_exporter(url: str) -> Iterator[str]:
    """Run the exporter of a Redis; yield its address."""
    address = f"127.0.0.1:{free_port()}"
    command = [program("prometheus-redis-exporter"), "-redis.addr", url, "-web.listen-address", address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield address
    finally:
        process.kill()
        process.wait()
