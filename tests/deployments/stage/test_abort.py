"""The group of an NCCL transport is aborted exactly once, and nothing waits for that."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from deployments.stage.transports import process_group
from deployments.stage.transports.base import RECEIVER
from deployments.stage.transports.process_group import NcclTransport
from tests.deployments.stage.transport_peers import CPU, Peers
from tests.support.waiting import LIMIT_S, wait_until


class Group:
    """Blocks in ``abort`` until a test lets it go, as NCCL may, and counts the calls."""

    Options = dict

    def __init__(self, *_: Any) -> None:
        self.n_aborts = 0
        self.go_on = threading.Event()

    def abort(self) -> None:
        self.n_aborts += 1
        assert self.go_on.wait(LIMIT_S)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transports are built without a device, and leave the environment as it is."""
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(process_group, "NCCL_ENVIRONMENT", {})


def watchdogs() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "stage-watchdog"}


@pytest.mark.parametrize("first", ["neighbour", "own", "both", "slow transfer"])
def test_a_group_is_aborted_once_whoever_ends_its_transport(
    first: str, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NcclTransport, "_build", lambda transport, rank: None)
    neighbour, channel = peers.pair("stage")
    before = watchdogs()
    transport = NcclTransport(channel, CPU, RECEIVER)
    group = transport._group
    if first == "slow transfer":
        transport._watchdog._deadline = 0.0
    start = threading.Barrier(4)

    def close_transport() -> None:
        start.wait(LIMIT_S)
        if first != "neighbour":
            transport.close()

    with ThreadPoolExecutor() as threads:
        ended = [threads.submit(close_transport) for _ in range(3)]
        start.wait(LIMIT_S)
        if first in ("neighbour", "both"):
            neighbour.close()
        for one in ended:
            one.result(LIMIT_S)
    wait_until(lambda: group.n_aborts)
    transport.close()  # returns though the abort blocks
    group.go_on.set()
    wait_until(lambda: watchdogs() <= before)
    transport.close()
    assert group.n_aborts == 1


def test_a_link_that_cannot_be_built_is_aborted_once(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[NcclTransport] = []

    def fail(transport: NcclTransport, rank: int) -> None:
        made.append(transport)
        transport._group.go_on.set()
        raise EOFError("no way to the neighbour")

    monkeypatch.setattr(NcclTransport, "_build", fail)
    before = watchdogs()
    with pytest.raises(EOFError, match="no way"):
        NcclTransport(peers.pair("stage")[1], CPU, RECEIVER)
    wait_until(lambda: watchdogs() <= before)
    assert made[0]._group.n_aborts == 1
