"""A real Prometheus and Redis exporter, from Debian's packages ``prometheus`` and ``prometheus-redis-exporter``.

Both can be unpacked without being installed: ``apt-get download``, ``dpkg -x``, and their usr/bin in the PATH.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import promql_parser

from benchmarks.support.server_process import free_port
from tests.support.lacking import lacking

START_S = 240.0
FOREIGN = ("redis_",)  # metrics of the exporter begin so


def program(name: str) -> str:
    """Its path; without it the test is ended."""
    found = shutil.which(name)
    if found is None:
        package = name if name.endswith("exporter") else "prometheus"
        lacking(f"{name} is not in the PATH; it is in Debian's package {package}")
    return found


def with_variables(expression: str, window: str = "1m") -> str:
    """What Grafana makes of a board's expression."""
    return expression.replace("$__rate_interval", window).replace("$model_name", ".*")


def metric_names(expression: str) -> set[str]:
    """Of all selectors of a PromQL expression; raises ValueError when it is none."""
    return {selector.name for selector in _nodes(expression, promql_parser.VectorSelector)}


def grouped_by(expression: str) -> set[str]:
    """Labels that its aggregations keep."""
    modifiers = (node.modifier for node in _nodes(expression, promql_parser.AggregateExpr))
    kept = (each.labels for each in modifiers if each and each.type == promql_parser.AggModifierType.By)
    return {label for labels in kept for label in labels}


def _nodes(expression: str, kind: type) -> list[Any]:
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression), lambda node: found.append(node))
    return [node for node in found if isinstance(node, kind)]


class Prometheus:
    """A server on 127.0.0.1 that asks every target once a second.

    Args:
        folder: for its data.
        rules: a file of rules.
    """

    def __init__(self, folder: Path, rules: Path) -> None:
        self._folder = folder
        self._rules = rules
        self._config = folder / "prometheus.yml"
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{free_port()}", timeout=240)
        self._process: subprocess.Popen[bytes] | None = None

    def scrape(self, jobs: list[dict[str, Any]]) -> None:
        """Scrape these and no others from now on; starts the server."""
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        asked = {"global": every, "rule_files": [str(self._rules)], "scrape_configs": jobs}
        self._config.write_text(json.dumps(asked))  # JSON is YAML
        if self._process is None:
            self._start()
        else:
            self._process.send_signal(signal.SIGHUP)

    def _start(self) -> None:
        listen = self._http.base_url.netloc.decode()
        command = [program("prometheus"), f"--config.file={self._config}", f"--web.listen-address={listen}"]
        with (self._folder / "log").open("wb") as log:
            stored = f"--storage.tsdb.path={self._folder}/data"
            self._process = subprocess.Popen([*command, stored], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, what: str, **parameters: str) -> Any:
        """``data`` of an answer of the API."""
        answer = self._http.get(f"/api/v1/{what}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of an expression now."""
        return [(each["metric"], float(each["value"][1])) for each in self.ask("query", query=expression)["result"]]

    def number(self, expression: str) -> float:
        """The value of an expression with one series; NaN: it has none."""
        found = self.query(expression)
        assert len(found) < 2, found
        return found[0][1] if found else float("nan")

    def close(self) -> None:
        """End it."""
        self._http.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def redis_exporter(url: str) -> Iterator[str]:
    """The address at which it tells of a Redis."""
    address = f"127.0.0.1:{free_port()}"
    command = [program("prometheus-redis-exporter"), "-redis.addr", url, "-web.listen-address", address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield address
    finally:
        process.kill()
        process.wait()
