"""The application on machines: as an operator deploys it, and as clients elsewhere use it."""

from __future__ import annotations

import re
from typing import Any

import httpx

from tests.cluster.machines.ray_machines import RayMachines
from tests.support.redis_server import wait_until
from tests.support.serve_application import NAME, is_running
from tests.support.server_process import StreamedCompletion
from tests.support.tiny_models import saved_checkpoint

PLACED = {"stages": 2, "stage_cpus": 2, "stage_placement": "strict_spread", "edge_resources": {"edge": 0.01}}
EDGE_CPUS, STAGE_CPUS = 1, 3  # of machines: a stage has no room on an edge, and two have none on one machine
METHODS = ("autoregressive", "pld", "spectra-core", "auto")


def serve_config(**args: Any) -> dict[str, Any]:
    """As a RayService holds it: what speaks to clients runs on edge nodes, stages on nodes of their own."""
    given = {"model": str(saved_checkpoint()), "name": "tiny", "method": "auto"} | PLACED | args
    return {"applications": [{"name": NAME, "import_path": "spectra_serve:build_app", "args": given}]}


def job(number: int, n_tokens: int) -> dict[str, Any]:
    """Fields of a request whose text follows from the number."""
    sampling = {"temperature": 0.8 if number % 2 else 0.0, "seed": number, "ignore_eos": True, "max_tokens": n_tokens}
    method = {"speculative": {"method": METHODS[number % len(METHODS)]}}
    return {"model": "tiny", "prompt": f"Question {number}: what"} | sampling | method


class SpectraMachines(RayMachines):
    """A head, an edge, and machines for stages; the clients' proxy is the edge's."""

    @property
    def http(self) -> httpx.Client:
        """The clients' connections, to the first edge."""
        return self.clients[self._edges[0]]

    def start(self, stages: tuple[str, ...], edges: tuple[str, ...] = ("edge",), others: int = 0) -> None:
        """Start Ray on machines and wait until they know each other.

        Args:
            stages: names of machines for stages, spare ones among them.
            edges: names of the others.
            others: machines that have joined before.
        """
        self._edges = edges
        for name in (*edges, *stages):
            self.start_worker(name)
        self.until_nodes(1 + len(edges) + len(stages) + others)
        self.clients = {name: self.client(self.net.machine(name)) for name in edges}

    def start_worker(self, name: str) -> None:
        """Start Ray on an edge or a stages' machine, also on one that was killed."""
        if name in self._edges:
            self.join(name, EDGE_CPUS, edge=1)
        else:
            self.join(name, STAGE_CPUS)

    def deploy(self, **args: Any) -> None:
        """PUT the application, and wait until it runs and the proxies of edges know it: what they are asked before goes
        by way of the head, and so does what comes over the same connection afterwards."""
        self.application.put(serve_config(**args))
        self.application.until(is_running)
        wait_until(lambda: all(map(self._knows_ingress, self._edges)), "a proxy does not know the ingress")

    def _knows_ingress(self, edge: str) -> bool:
        said = self.net.machine(edge).run("curl", "-s", "http://127.0.0.1:9101/metrics")  # HAProxy's own
        return re.search(r'haproxy_server_status{.*server="SERVE_REPLICA.*state="UP"} 1', said) is not None

    def texts(self, numbers: range, n_tokens: int) -> list[list[int]]:
        """Token ids of jobs, all running at once."""
        return [stream.all_ids() for stream in self.streams(numbers, n_tokens)]

    def streams(self, numbers: range, n_tokens: int, until: int = 0) -> list[StreamedCompletion]:
        """Streams of jobs, each of which has got ``until`` tokens."""
        streams = [StreamedCompletion(self, **job(number, n_tokens)) for number in numbers]
        for stream in streams:
            stream.until(until)
        return streams
