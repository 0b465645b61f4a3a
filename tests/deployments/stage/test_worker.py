"""A stage's loop: what it says of itself, whom it takes for a neighbour, and what it does when that is replaced."""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.pipeline.endpoints import Endpoints
from deployments.stage.worker import StageWorker
from deployments.transport.addresses import listen
from deployments.transport.async_channel import AsyncChannel
from deployments.transport.channel import Channel
from deployments.transport.roles import STAGE_ROLES
from engine.loop import Completion
from engine.model.loader import load_shard
from engine.model.ranges import split_layers
from engine.request import Request
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step
from engine.target.info import TargetInfo, positions
from tests.support import slow_stage
from tests.support.stage_steps import connected, first_step, wait_until

CPU = torch.device("cpu")
PAUSE_S, LONG_PAUSE_S = 0.05, 0.4
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class Slow(slow_stage.Slow):
    """Longer than most."""

    pause_s = PAUSE_S


class Slower(slow_stage.Slow):
    """So slow that what other stages take is told from it on a machine that does other things, too."""

    pause_s = LONG_PAUSE_S


class Fails(Stage):
    """No forward succeeds."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        raise ValueError("broken on purpose")


class Held(Stage):
    """A forward waits for the test."""

    entered, released = threading.Event(), threading.Event()

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        self.entered.set()
        assert self.released.wait(120)
        return super().forward(step, incoming)


async def test_a_result_tells_how_long_every_stage_was_busy(serving: Any) -> None:
    async with serving(3, [Stage, Slower, Stage]) as served:
        pipeline = await connected(served)
        for step in (first_step(), Step(1, [])):
            pipeline.send(step)
            result = await pipeline.receive()
            assert len(result.stage_seconds) == 3
            assert result.seconds == result.stage_seconds[-1]
            assert all(seconds >= 0 for seconds in result.stage_seconds)
            assert (result.stage_seconds[1] >= LONG_PAUSE_S) == bool(step.work)
        pipeline.close()


async def test_a_stages_time_holds_no_waiting(serving: Any) -> None:
    async with serving(2, [Stage, Slower]) as served:
        pipeline = await connected(served)
        for number in range(5):
            pipeline.send(first_step(number))
        results = [await pipeline.receive() for _ in range(5)]
        assert sum(result.stage_seconds[0] for result in results) < 4 * LONG_PAUSE_S  # else it waited for the other
        assert all(result.stage_seconds[1] >= LONG_PAUSE_S for result in results)
        pipeline.close()


async def test_a_failed_step_has_times_too(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving(3, [Slow, Fails, Stage]) as served:
        pipeline = await connected(served)
        pipeline.send(first_step())
        result = await pipeline.receive()
        assert "broken on purpose" in result.error
        assert result.results == []
        assert len(result.stage_seconds) == 3
        assert result.stage_seconds[0] >= PAUSE_S
        pipeline.close()


async def test_a_stage_inside_a_step_can_be_told_from_an_idle_one(serving: Any) -> None:
    Held.entered.clear()
    Held.released.clear()
    async with serving(2, [Stage, Held]) as served:
        pipeline = await connected(served)
        first, last = served.stages.workers
        assert (first.busy_since, last.busy_since) == (None, None)
        before = time.monotonic()
        pipeline.send(first_step())
        assert await asyncio.to_thread(Held.entered.wait, 20)
        await wait_until(lambda: first.busy_since is None)
        assert before <= last.busy_since <= time.monotonic()
        Held.released.set()
        await pipeline.receive()
        await wait_until(lambda: last.busy_since is None)
        pipeline.close()


@pytest.mark.parametrize("transport", ["auto", "gloo"])
@pytest.mark.parametrize("place", [1, 2])
async def test_the_text_goes_on_when_one_stage_is_replaced_in_place(
    place: int, transport: str, serving: Any, make_job: MakeJob, offline: Offline, tiny_checkpoint: Path
) -> None:
    jobs = [make_job(number, "pld", max_tokens=20, stop_ids=(), temperature=0.8) for number in range(3)]
    async with serving(3, [Slow] * 3, transport=transport) as served:
        info: TargetInfo = served.info
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        # In the midst of a text, whatever else the machine does: nothing runs here between this look and the loss.
        running = served.router.lanes[0].scheduler
        await wait_until(lambda: any(len(one.tokens) > one.n_prompt for one in running.sequences))
        workers = served.stages.workers
        workers[place].close()
        layers = split_layers(info.spec.n_layers, 3)[place]
        shard = load_shard(tiny_checkpoint, layers, dtype=torch.float32, device=CPU, n_positions=positions(info))
        with tempfile.TemporaryDirectory(prefix="st-") as folder:
            secret = served.stages.endpoints.secret
            fresh = StageWorker(
                Stage(shard, info.n_blocks, info.block_size), CPU, f"unix:{folder}/s", secret, transport
            )
            fresh.start(workers[place + 1].address if place == 1 else None)
            workers[place] = fresh
            workers[place - 1].start(fresh.address)
            served.stages.endpoints = Endpoints(workers[0].address, workers[-1].address, secret, info)
            for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
                assert answer.token_ids == offline(job).token_ids
            assert (await served.settled())["pipelines_lost"] >= 1
            assert all(worker.is_alive for worker in workers)
            fresh.close()


async def test_routers_that_were_superseded_while_a_step_ran_are_skipped(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Held.entered.clear()
    Held.released.clear()
    async with serving(1, [Held]) as served:
        pipeline = await connected(served)
        (worker,) = served.stages.workers
        pipeline.send(first_step())
        assert await asyncio.to_thread(Held.entered.wait, 20)  # the reset for this connection is over
        resets, reset = [], worker._stage.reset
        monkeypatch.setattr(worker._stage, "reset", lambda: (resets.append(1), reset())[1])
        routers = [await served.connect() for _ in range(4)]
        Held.released.set()
        routers[-1].send(first_step())
        assert (await routers[-1].receive()).error == ""
        assert len(resets) == 1
        for router in (pipeline, *routers):
            router.close()


async def test_a_stage_whose_loop_has_ended_counts_as_dead(
    serving: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving(1) as served:
        pipeline = await connected(served)
        (worker,) = served.stages.workers

        def fail() -> None:
            raise RuntimeError("a device that was lost")

        monkeypatch.setattr(worker, "_settle", fail)
        assert worker.is_alive
        pipeline.close()
        async with asyncio.timeout(240):
            while worker.is_alive:
                await asyncio.sleep(0.01)


async def test_a_tcp_peer_that_vanishes_without_a_word_is_noticed_within_about_ten_seconds() -> None:
    server, address = listen("tcp:127.0.0.1:0")
    accepted: list[Channel] = []

    def accept() -> None:
        for _ in range(2):
            Channel.accept(server.accept()[0], b"k" * 32, STAGE_ROLES, accepted.append)

    thread = threading.Thread(target=accept)
    thread.start()
    blocking = await asyncio.to_thread(Channel.connect, address, b"k" * 32, "steps")
    loops = await AsyncChannel.connect(address, b"k" * 32, "steps")
    await asyncio.to_thread(thread.join)
    streams = [one._socket for one in (blocking, *accepted)]
    for owner in (*(stream._socket for stream in streams), loops._writer.get_extra_info("socket")):
        options = [
            owner.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            *(owner.getsockopt(socket.IPPROTO_TCP, name) for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)),
            owner.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            owner.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        ]
        assert options == [1, 4, 2, 3, 10_000]
    for one in (blocking, loops, *accepted):
        one.close()
    server.close()
