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

import msgspec
import pytest
import torch
from torch import Tensor

from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.frames import encode_frame
from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.links.base import allocate
from deployments.stage.links.negotiation import Offer
from deployments.stage.worker import StageWorker
from deployments.transport.addresses import listen
from deployments.transport.async_channel import AsyncChannel
from deployments.transport.channel import Channel
from deployments.transport.roles import STAGE_ROLES
from engine.errors import TargetLostError
from engine.loop import Completion
from engine.model.loader import load_shard
from engine.model.ranges import split_layers
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.stage.base import Activations, Computing
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.target.info import TargetInfo, positions
from tests.support import slow_stage

CPU = torch.device("cpu")
PAUSE_S = 0.05
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class Slow(slow_stage.Slow):
    """Longer than most."""

    pause_s = PAUSE_S


class Fails(Stage):
    """No forward succeeds."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        raise ValueError("broken on purpose")


class Held(Stage):
    """A forward waits for the test."""

    entered, released = threading.Event(), threading.Event()

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        self.entered.set()
        assert self.released.wait(30)
        return super().forward(step, incoming)


class Late(Stage):
    """As on a GPU: activations are true some time after ``forward`` has returned."""

    @torch.inference_mode()
    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        made = super().forward(step, incoming)
        self._late = Computed(made.hidden.clone(), made.hidden)
        made.hidden.fill_(float("nan"))
        return made

    def computing(self) -> Computing:
        return self._late


class Computed:
    """What a device writes at last."""

    def __init__(self, true: Tensor, to: Tensor) -> None:
        self._true, self._to = true, to

    def wait(self) -> float:
        time.sleep(0.002)
        with torch.inference_mode():
            self._to.copy_(self._true)
        return 3.5


def first_step(number: int = 0) -> Step:
    """A prompt of three tokens."""
    start = SequenceStart(number, SamplingParams(max_tokens=5), 3, Needs())
    return Step(number, [Work(number, 0, [5, 6, 7], new_blocks=[number])], [start])


async def wait_until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def connected(served: Any) -> Pipeline:
    """The stages, taken from the router."""
    await served.router.close()
    pipeline: Pipeline = await served.connect()
    return pipeline


async def test_a_result_tells_how_long_every_stage_was_busy(serving: Any) -> None:
    async with serving(3, [Stage, Slow, Stage]) as served:
        pipeline = await connected(served)
        for step in (first_step(), Step(1, [])):
            pipeline.send(step)
            result = await pipeline.receive()
            assert len(result.stage_seconds) == 3
            assert result.seconds == result.stage_seconds[-1]
            assert all(seconds >= 0 for seconds in result.stage_seconds)
            assert (result.stage_seconds[1] >= PAUSE_S) == bool(step.work)
        pipeline.close()


async def test_a_stages_time_holds_no_waiting(serving: Any) -> None:
    async with serving(2, [Stage, Slow]) as served:
        pipeline = await connected(served)
        for number in range(5):
            pipeline.send(first_step(number))
        results = [await pipeline.receive() for _ in range(5)]
        assert sum(result.stage_seconds[0] for result in results) < 4 * PAUSE_S  # else it waited for the other
        assert all(result.stage_seconds[1] >= PAUSE_S for result in results)
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
async def test_texts_are_the_same_when_a_device_is_later_than_its_loop(
    transport: str, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, "pld", max_tokens=12, stop_ids=(), temperature=0.8) for number in range(3)]
    async with serving(3, [Late, Late, Stage], transport=transport) as served:
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
        pipeline = await connected(served)
        for step in (first_step(), Step(1, [])):
            pipeline.send(step)
        first, second = [await pipeline.receive() for _ in range(2)]
        assert first.stage_seconds[:2] == (3.5, 3.5)  # the device's, not the loop's
        assert all(seconds < 3.0 for seconds in second.stage_seconds)
        await wait_until(lambda: all(worker.busy_since is None for worker in served.stages.workers))
        pipeline.close()


async def test_a_device_that_is_not_done_shows_as_a_busy_stage(serving: Any) -> None:
    go_on = threading.Event()

    class Hangs(Late):
        def computing(self) -> Computing:
            class Stuck:
                def wait(self) -> float:
                    assert go_on.wait(60)
                    return 0.0

            return Stuck()

    async with serving(2, [Hangs, Stage]) as served:
        pipeline = await connected(served)
        first, last = served.stages.workers
        before = time.monotonic()
        pipeline.send(first_step())
        pipeline.send(Step(1, []))
        await wait_until(lambda: first.busy_since is not None)
        await asyncio.sleep(0.05)
        assert before <= first.busy_since <= time.monotonic()
        assert last.busy_since is None
        go_on.set()
        assert [(await pipeline.receive()).step_id for _ in range(2)] == [0, 1]
        await wait_until(lambda: first.busy_since is None)
        pipeline.close()


async def test_a_stage_whose_device_hangs_stays_busy_without_its_router_and_serves_no_other(serving: Any) -> None:
    go_on = threading.Event()

    class Hangs(Late):
        def computing(self) -> Computing:
            class Stuck:
                def wait(self) -> float:
                    assert go_on.wait(60)
                    return 0.0

            return Stuck()

    async with serving(2, [Hangs, Stage]) as served:
        pipeline = await connected(served)
        first = served.stages.workers[0]
        pipeline.send(first_step())
        await wait_until(lambda: first.busy_since is not None)
        began = first.busy_since
        pipeline.close()
        await wait_until(lambda: first.n_sequences == 0)  # the loop has noticed
        again = await connected(served)
        again.send(Step(0, []))
        answer = asyncio.ensure_future(again.receive())
        assert not (await asyncio.wait([answer], timeout=0.2))[0]
        assert first.busy_since == began
        go_on.set()
        assert (await answer).step_id == 0
        await wait_until(lambda: first.busy_since is None)
        again.close()


async def test_a_device_that_fails_ends_its_stage(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    class Breaks(Late):
        def computing(self) -> Computing:
            class Broken:
                def wait(self) -> float:
                    raise torch.AcceleratorError("unspecified launch failure")

            return Broken()

    async with serving(2, [Breaks, Stage]) as served:
        pipeline = await connected(served)
        pipeline.send(first_step())
        with pytest.raises(TargetLostError):
            await pipeline.receive()
        assert not served.stages.workers[0].is_alive
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
        await asyncio.sleep(4 * PAUSE_S)
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


def stage_frame(step: bytes = b"", tensors: Any = (), **more: Any) -> bytes:
    fields = {"error": "", "rows_at": (), "seconds": ()} | more
    return msgspec.msgpack.encode([step, tensors, *fields.values()])


BAD_FRAMES = [
    b"",
    b"\xc1",
    stage_frame(tensors=[["float64", [1]]]),
    stage_frame(tensors=[["float32", [1 << 30, 1 << 30]]]),
    stage_frame(tensors=[["float32", [0]]] * 3),
    stage_frame(b"no step"),
    stage_frame(seconds=("long",)),
    stage_frame(rows_at=7),
]


async def as_a_stage(served: Any) -> Channel:
    """A connection to the last stage that has agreed on a link."""
    last = served.stages.workers[-1]
    peer = await asyncio.to_thread(Channel.connect, last.address, served.stages.endpoints.secret, "stage")
    peer.send(msgspec.msgpack.encode(Offer(("socket",), "cpu")))
    await asyncio.to_thread(peer.receive)  # the choice
    return peer


@pytest.mark.parametrize("frame", BAD_FRAMES, ids=range(len(BAD_FRAMES)))
async def test_what_is_no_frame_of_a_stage_costs_the_connection_only(frame: bytes, serving: Any) -> None:
    async with serving(2) as served:
        pipeline = await connected(served)
        pipeline.send(first_step())
        before = await pipeline.receive()
        pipeline.close()
        hostile = await as_a_stage(served)
        hostile.send(frame)
        with pytest.raises((EOFError, OSError)):
            await asyncio.to_thread(hostile.receive)
        hostile.close()
        pipeline = await served.connect()
        pipeline.send(first_step())
        assert (await pipeline.receive()).results == before.results
        pipeline.close()


async def test_tensors_of_a_router_are_refused(serving: Any) -> None:
    async with serving(1) as served:
        pipeline = await connected(served)
        pipeline._steps.send(encode_frame(first_step(), Activations(torch.ones(1, 3, 32))))
        with pytest.raises(Exception, match="broke"):
            await pipeline.receive()
        pipeline.close()


async def test_activations_of_the_wrong_shape_fail_their_step_only(
    serving: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving(2) as served:
        await served.router.close()
        endpoints = served.stages.endpoints
        results = await AsyncChannel.connect(endpoints.last, endpoints.secret, "results")
        peer = await as_a_stage(served)
        for hidden in (torch.ones(1, 3, 7), torch.ones(2), torch.ones(1, 0, 32)):
            peer.send(encode_frame(first_step(), Activations(hidden)))
            peer.send_all([memoryview(hidden.reshape(-1).view(torch.uint8).numpy())])
            answer = msgspec.msgpack.decode(await results.receive())
            assert answer["error"]
        peer.close()
        results.close()


def test_a_head_says_what_its_tensor_is() -> None:
    head = TensorHeader.of(torch.ones(2, 3, dtype=torch.bfloat16))
    assert head == TensorHeader("bfloat16", (2, 3))
    assert head.n_bytes == 12
    assert allocate([head], CPU)[0].shape == (2, 3)


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
