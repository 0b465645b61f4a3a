"""Machine by machine, as pods get another image without spare GPUs: each is told to end, ends, and comes back new."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import pytest

from tests.cluster.machines.net import Net
from tests.cluster.machines.spectra_machines import PLACED, SpectraMachines, job, serve_config
from tests.support.serve_application import is_running, replicas_of
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.matrix

EDGES, STAGES = ("edge", "edge-2"), ("stage-1", "stage-2", "spare")
JOBS, N_TOKENS = range(8), 300
PAUSE_S = 0.2  # of a client before it asks elsewhere


@pytest.fixture(scope="module")
def site(net: Net, logs: Path) -> Iterator[SpectraMachines]:
    with SpectraMachines(net, logs) as site:
        site.start(STAGES, EDGES)
        site.deploy(ingress_replicas=len(EDGES))
        yield site


@pytest.fixture(scope="module")
def wanted(site: SpectraMachines) -> list[list[int]]:
    """Undisturbed answers to the jobs."""
    return site.texts(JOBS, N_TOKENS)


class Clients:
    """One for each job, within a ``with`` block: it asks for its text again and again, in turns at the edges.

    A connection that ends before its text does makes a client ask the next edge, as a user of the API would.
    """

    def __init__(self, site: SpectraMachines) -> None:
        self._edges = [site.clients[name] for name in EDGES]
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(len(JOBS))
        self._running: list[Future[None]] = []
        self.answers: list[tuple[int, list[int]]] = []
        self.broken: list[httpx.TransportError] = []

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._ask, number) for number in JOBS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._pool.shutdown(wait=False)
        for running in self._running:
            running.result(LIMIT_S)

    def _ask(self, number: int) -> None:
        turn = number
        while not self._ended.is_set():
            edge = self._edges[turn % len(EDGES)]
            try:
                if edge.get("/-/healthz").is_success:  # as KubeRay's probe asks: a Service has no others
                    self.answers.append((number, token_ids(edge, number)))
                else:
                    self._ended.wait(PAUSE_S)
            except httpx.TransportError as error:
                self.broken.append(error)
                self._ended.wait(PAUSE_S)
            turn += 1


def token_ids(client: httpx.Client, number: int) -> list[int]:
    """A job's text, streamed to its end.

    Raises:
        TransportError: the connection was refused, or ended before the text.
    """
    fields = job(number, N_TOKENS) | {"stream": True, "return_token_ids": True}
    with client.stream("POST", "/v1/completions", json=fields) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert (answer.status_code, lines[-1]) == (httpx.codes.OK, "[DONE]"), (answer.status_code, lines[-2:])
    chunks = [json.loads(line) for line in lines[:-1]]
    return [one for chunk in chunks for choice in chunk["choices"] for one in choice["token_ids"]]


def replace(site: SpectraMachines, name: str) -> None:
    """What KubeRay and the kubelet do to a deleted pod and its successor, until the application runs on all again."""
    machine = site.net.machine(name)
    site.drain(machine).wait(LIMIT_S)
    machine.kill()
    site.start_worker(name)
    site.until_nodes(1 + len(EDGES) + len(STAGES))
    site.application.until(is_running)


@pytest.mark.parametrize("name", STAGES)
def test_a_machine_of_stages_is_replaced_and_no_stream_ends(
    site: SpectraMachines, wanted: list[list[int]], name: str
) -> None:
    with Clients(site) as clients:
        replace(site, name)
    assert not clients.broken
    assert {number for number, _ in clients.answers} == set(JOBS)
    assert [number for number, ids in clients.answers if ids != wanted[number]] == []


@pytest.mark.parametrize("name", EDGES)
def test_an_edge_is_replaced_and_its_clients_get_the_same_text_elsewhere(
    site: SpectraMachines, wanted: list[list[int]], name: str, record_property: Callable[[str, object], None]
) -> None:
    with Clients(site) as clients:
        replace(site, name)
    record_property("connections that ended before their text", len(clients.broken))
    assert {number for number, _ in clients.answers} == set(JOBS)
    assert [number for number, ids in clients.answers if ids != wanted[number]] == []


def test_other_options_spread_http_processes_over_the_edges_again(
    site: SpectraMachines, wanted: list[list[int]]
) -> None:
    """Serve starts a proxy beside replicas alone, and moves none to an edge that has come back."""
    config = serve_config(ingress_replicas=len(EDGES))
    options = {"num_cpus": 0.11, "resources": PLACED["edge_resources"]}
    config["applications"][0]["deployments"] = [{"name": "Ingress", "ray_actor_options": options}]
    before = site.application.replicas("Ingress")
    streams = site.streams(JOBS, N_TOKENS)
    site.application.put(config)
    site.application.until(lambda found: is_running(found) and not before & replicas_of(found, "Ingress"))
    assert [stream.all_ids() for stream in streams] == wanted
    assert [token_ids(site.clients[edge], 1) for edge in EDGES] == [wanted[1]] * len(EDGES)
