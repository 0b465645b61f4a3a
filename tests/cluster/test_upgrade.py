"""What changes under streams: the model, by a second cluster beside the first."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.support.machines.net import Net
from tests.support.machines.spectra_machines import SpectraMachines, job
from tests.support.machines.switching_proxy import SwitchingProxy
from tests.support.server_process import Stream

pytestmark = pytest.mark.matrix

JOBS, N_TOKENS = range(32), 300
MODEL = "/tmp/models/new"  # on each machine of the new cluster


@pytest.fixture(scope="module")
def site(net: Net, logs: Path) -> Iterator[SpectraMachines]:
    with SpectraMachines(net, logs) as site:
        site.start(("stage-1", "stage-2"))
        site.deploy()
        yield site


@pytest.fixture(scope="module")
def wanted(site: SpectraMachines) -> list[list[int]]:
    """Undisturbed answers to the jobs."""
    return site.texts(JOBS, N_TOKENS)


@pytest.fixture
def new_site(net: Net, logs: Path, tiny_checkpoint: Path) -> Iterator[SpectraMachines]:
    """A cluster of its own machines with another model under the same name, not yet deployed."""
    names = ("new-stage", "new-edge", "new-head")
    for name in names:
        shutil.copytree(tiny_checkpoint, net.machine(name).path(MODEL))
    stage, edge, head = names
    with SpectraMachines(net, logs, head=head) as site:
        site.start((stage,), (edge,))
        yield site


class Visitors:
    """One short request after the other, each by a connection of its own, within a ``with`` block."""

    def __init__(self, proxy: SwitchingProxy) -> None:
        self._proxy = proxy
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._visit, daemon=True)
        self.answers: list[tuple[int, str]] = []  # status and model

    def _visit(self) -> None:
        while not self._ended.is_set():
            with self._proxy.client() as client:
                self.answers.append(served(client))
            self._ended.wait(0.2)

    def __enter__(self) -> Visitors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def served(client: httpx.Client) -> tuple[int, str]:
    """The status of a short completion, and the hash of the model that answers."""
    status = client.post("/v1/completions", json=job(0, 4)).status_code
    return status, client.get("/v1/models").json()["data"][0]["model_hash"]


def test_another_model_comes_by_a_second_cluster_and_the_first_ends_its_streams(
    net: Net, logs: Path, site: SpectraMachines, new_site: SpectraMachines, wanted: list[list[int]]
) -> None:
    [old_edge, new_edge] = (net.machine(name) for name in ("edge", "new-edge"))
    proxy = SwitchingProxy(net, logs, old_edge)
    old_model = served(site.http)[1]
    with ExitStack() as stack:
        clients = [SimpleNamespace(http=stack.enter_context(proxy.client())) for _ in range(2)]

        def streams(client: Any) -> list[Stream]:
            return [Stream(client, **job(number, N_TOKENS)) for number in JOBS]

        visitors = stack.enter_context(Visitors(proxy))
        new_site.deploy(model=MODEL, name="demo", stages=1)
        new_model, new_texts = served(new_site.http)[1], new_site.texts(JOBS, N_TOKENS)
        assert new_model != old_model
        begun = streams(clients[0])
        for stream in begun:
            stream.until(5)
        proxy.switch(new_edge)
        later = streams(clients[1])
        assert any(stream.is_running for stream in begun)
        assert [stream.all_ids() for stream in later] == new_texts
        assert [stream.all_ids() for stream in begun] == wanted
        for name in ("edge", "stage-1", "stage-2", site.head.name):
            net.machine(name).kill()
        n_before = len(visitors.answers)
        # Connections that were kept end with the old cluster, and the client opens others.
        assert Stream(clients[0], **job(1, N_TOKENS)).all_ids() == new_texts[1]
    assert {status for status, _ in visitors.answers} == {httpx.codes.OK}
    models = [model for _, model in visitors.answers]
    assert models == sorted(models, key=[old_model, new_model].index)
    assert set(models[n_before + 1 :]) <= {new_model}
