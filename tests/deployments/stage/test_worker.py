"""A stage's loop: the times it reports, and what it does when a neighbour, a router or the device is lost."""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from deployments.channels.async_channel import AsyncChannel
from deployments.pipeline.endpoints import Endpoints
from deployments.stage import step_server
from deployments.stage.worker import StageWorker
from engine.loop import Completion
from engine.model.loader import load_shard
from engine.model.ranges import split_layers
from engine.request import Request
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step
from engine.target_model.info import TargetInfo, positions
from tests.deployments.slow_stage import ForwardGate, Gated
from tests.deployments.stage.stage_steps import connected, first_step
from tests.deployments.stage.transport_peers import Peers
from tests.support.listeners import SECRET
from tests.support.waiting import wait_until_async

CPU = torch.device("cpu")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class Timed(Stage):
    """Takes 5 seconds of its thread's clock, which stands still otherwise; other stages plan meanwhile."""

    clock = threading.local()

    @classmethod
    def now(cls) -> float:
        return getattr(cls.clock, "now", 0.0)

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        self.clock.now = self.now() + 5.0
        return super().forward(step, incoming)


class Fails(Stage):
    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if step.step_id == 1:
            return super().forward(step, incoming)
        raise ValueError("broken on purpose")


@pytest.mark.parametrize(
    ("kinds", "seconds", "error"),
    [([Stage, Timed, Stage], (0, 5, 0), ""), ([Timed, Fails, Stage], (5, 0, 0), "broken on purpose")],
)
async def test_a_result_reports_the_seconds_of_each_stage_without_its_waiting(
    kinds: list[type[Stage]],
    seconds: tuple[int, ...],
    error: str,
    serving: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(step_server, "time", SimpleNamespace(perf_counter=Timed.now))
    async with serving(3, kinds) as served:
        pipeline = await connected(served)
        for step in (first_step(0), Step(1, []), first_step(2)):
            pipeline.send(step)
            result = await pipeline.receive()
            assert result.stage_seconds == (seconds if step.work else (0, 0, 0))
            assert result.seconds == result.stage_seconds[-1]
            assert error in result.error or not step.work
            assert bool(result.results) == (not error and bool(step.work))
        pipeline.close()


async def test_a_failed_step_ends_sequences_on_every_stage(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving(3, [Fails, Stage, Stage]) as served:
        pipeline = await connected(served)
        failing = msgspec.structs.replace(first_step(2), ends=[1])
        for step, error in ((first_step(1), ""), (failing, "broken on purpose"), (Step(3, [], ends=[2]), "")):
            pipeline.send(step)
            assert error in (await pipeline.receive()).error
        assert [worker._stage.n_sequences for worker in served.stages.workers] == [0, 0, 0]
        pipeline.close()


@pytest.mark.parametrize(("place", "transport"), [(1, "auto"), (2, "gloo")])
async def test_texts_continue_when_one_stage_is_replaced_in_place(
    place: int,
    transport: str,
    serving: Any,
    make_job: MakeJob,
    offline: Offline,
    tiny_checkpoint: Path,
    gate: ForwardGate,
) -> None:
    jobs = [make_job(number, "pld", max_tokens=20, stop_ids=(), temperature=0.8) for number in range(3)]
    gate.close(after=12)  # in the midst of a text
    async with serving(3, [Gated] * 3, transport=transport) as served:
        info: TargetInfo = served.info
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        running = served.router.lanes[0].scheduler
        await wait_until_async(lambda: any(len(one.tokens) > one.n_prompt for one in running.sequences))
        workers, secret = served.stages.workers, served.stages.endpoints.secret
        workers[place].close()
        gate.open()
        layers = split_layers(info.spec.n_layers, 3)[place]
        shard = load_shard(tiny_checkpoint, layers, dtype=torch.float32, device=CPU, n_positions=positions(info))
        with tempfile.TemporaryDirectory(prefix="st-") as folder:
            stage = Stage(shard, info.n_blocks, info.block_size)
            fresh = StageWorker(stage, CPU, f"unix:{folder}/s", secret, transport)
            fresh.start(workers[place + 1].address if place == 1 else None)
            workers[place] = fresh
            workers[place - 1].start(fresh.address)
            served.stages.endpoints = Endpoints(workers[0].address, workers[-1].address, secret, info)
            for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
                assert answer.token_ids == offline(job).token_ids
            assert (await served.settled())["pipelines_lost"] >= 1
            assert all(worker.is_alive for worker in workers)
            fresh.close()


@pytest.mark.parametrize("peers", ["tcp"], indirect=True)
async def test_a_tcp_peer_that_vanishes_silently_is_noticed_by_keepalives_and_timeouts(peers: Peers) -> None:
    blocking, accepted = peers.pair("stage")
    accepting = asyncio.create_task(asyncio.to_thread(peers.accept))
    loops = await AsyncChannel.connect(peers.address, SECRET, "stage")
    streams: list[Any] = [one._socket for one in (blocking, accepted, await accepting)]
    for owner in (*(stream._socket for stream in streams), loops._writer.get_extra_info("socket")):
        assert owner.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for option, most in ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
            assert 0 < owner.getsockopt(socket.IPPROTO_TCP, option) <= most
        assert 0 < owner.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 10_000
    loops.close()
