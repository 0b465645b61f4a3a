"""Later stages plan a step while the first one computes it, and receive its tensors from then on if they are idle."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from deployments.channels.channel import Channel
from deployments.pipeline.frames import OutcomeFrame, TensorHeader, encode_outcome, encode_step_frame
from deployments.stage import step_server
from deployments.stage.inbox import StageInbox
from deployments.stage.transports.negotiation import accept_transport, offer_transport
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step
from tests.deployments.slow_stage import ForwardGate, Gated
from tests.deployments.stage.stage_steps import connected, first_step
from tests.deployments.stage.transport_peers import CPU, KINDS, LARGE, Peers, deliver, received, same
from tests.support.listeners import SECRET
from tests.support.waiting import wait_until, wait_until_async

ROWS = (TensorHeader("float32", (1, 3, 8)),)


@pytest.mark.parametrize("transport", ["auto", "gloo"])
async def test_later_stages_plan_a_step_before_the_first_one_has_computed_it(
    transport: str, serving: Any, gate: ForwardGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[tuple[TensorHeader, ...]] = []

    def encode(step: bytes, tensors: tuple[TensorHeader, ...]) -> bytes:
        announced.append(tensors)
        return encode_step_frame(step, tensors)

    async with serving(3, [Gated, Stage, Stage], transport=transport) as served:
        pipeline = await connected(served)
        monkeypatch.setattr(step_server, "encode_step_frame", encode)
        gate.close()
        pipeline.send(first_step())
        later = served.stages.workers[1:]
        await wait_until_async(lambda: all(worker._stage._running.step is not None for worker in later))
        await wait_until_async(lambda: all(worker.busy_since is None for worker in later))  # planned; none hangs
        gate.open()
        result = await pipeline.receive()
        assert result.results[0].tokens
        assert len(result.stage_seconds) == 3
        assert [len(headers) for headers in announced] == [1, 1]  # hidden states, by each stage but the last
        pipeline.close()


class RecordingTransport:
    """A transport whose frames and tensors are there at once; remembers what is requested."""

    def __init__(self, kind: str, frames: Sequence[bytes | bytearray]) -> None:
        self.kind = kind
        self.log: list[str] = []
        self._frames = iter(frames)

    def header(self) -> bytes:
        frame = next(self._frames, None)
        if frame is None:
            raise EOFError("no more frames")
        self.log.append("header")
        return bytes(frame)

    def receive(self, headers: Sequence[TensorHeader]) -> Callable[[], list[Tensor]]:
        self.log.append("receive")
        return lambda: [torch.zeros(header.shape) for header in headers]

    def send(self, *_: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("announced", "is_idle", "log"),
    [
        (ROWS, True, ["header", "receive", "header"]),
        (ROWS, False, ["header", "header", "receive"]),
        ((), True, ["header", "header", "receive"]),  # shapes that are not known before the outcome
    ],
)
def test_only_an_idle_stage_receives_before_the_header(
    announced: tuple[TensorHeader, ...], is_idle: bool, log: list[str]
) -> None:
    frames = [encode_step_frame(first_step(), announced), bytes(encode_outcome(OutcomeFrame(ROWS)))]
    recording = RecordingTransport("socket", frames)  # this kind needs no thread yet
    inbox = StageInbox(recording, lambda: is_idle)
    assert inbox.take_step().tensors == announced
    activations = inbox.take_outcome().activations
    assert activations is not None
    assert activations.hidden.shape == (1, 3, 8)
    assert recording.log == log


def test_no_step_is_received_early_while_earlier_ones_wait_for_the_loop() -> None:
    recording = RecordingTransport(
        "nccl", [encode_step_frame(first_step(), ROWS), encode_outcome(OutcomeFrame(ROWS))] * 2
    )
    inbox = StageInbox(recording, lambda: True)
    wait_until(lambda: len(recording.log) == 6)
    assert recording.log == ["header", "header", "receive"] * 2
    for _ in range(2):
        inbox.take_step()
        assert inbox.take_outcome().activations is not None
    with pytest.raises(EOFError):
        inbox.take_step()


class Misannounces(Stage):
    """Computes other hidden states than it announces."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        activations = super().forward(step, incoming)
        return Activations(activations.hidden[:, 1:]) if step.step_id == 1 else activations


class FailsToAdmit(Stage):
    def admit(self, step: Step) -> None:
        if step.step_id == 1:
            raise ValueError("cannot admit")
        super().admit(step)


class FailsToPrepare(Stage):
    def prepare(self, step: Step) -> None:
        super().prepare(step)
        if step.step_id == 1:
            raise ValueError("cannot prepare")


@pytest.mark.parametrize("transport", ["auto", "gloo"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Misannounces, "had announced"), (FailsToAdmit, "cannot admit"), (FailsToPrepare, "cannot prepare")],
)
async def test_a_stage_that_breaks_its_announcement_fails_the_step_only(
    kind: type[Stage], reason: str, transport: str, serving: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving(4, [Stage, kind, Stage, Stage], transport=transport) as served:
        pipeline = await connected(served)
        answers = []
        for number in range(3):
            pipeline.send(first_step(number))
            answers.append(await pipeline.receive())
        assert [reason in answer.error for answer in answers] == [False, True, False]
        assert answers[0].results[0].tokens == answers[2].results[0].tokens
        pipeline.close()


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_may_be_expected_before_their_header_and_abandoned(kind: str, peers: Peers) -> None:
    sender, receiver = peers.transports(KINDS[kind])
    tensors = [torch.randn(1, 3, 8), torch.randn(LARGE // 4)]
    receiving = receiver.receive([*map(TensorHeader.of, tensors)])
    sender.send(b"step", [])
    sender.send(b"outcome", tensors)
    assert [receiver.header(), receiver.header()] == [b"step", b"outcome"]
    assert same(receiving(), tensors)
    receiving = receiver.receive(ROWS)
    sender.close()
    with pytest.raises((EOFError, OSError)):
        receiver.header()
    receiver.close()
    del receiving
    again, fresh = peers.transports(KINDS[kind])
    deliver(again, tensors)
    assert same(received(fresh), tensors)


def test_gloo_delivers_expected_tensors_whose_header_nobody_has_read(peers: Peers) -> None:
    sender, receiver = peers.transports("gloo")
    receiving = receiver.receive(ROWS)
    sender.send(b"outcome", [torch.ones(1, 3, 8)])
    assert same(receiving(), [torch.ones(1, 3, 8)])
    assert receiver.header() == b"outcome"


def send_half(address: str, transport: str, parent: Connection) -> None:
    """A process that announces tensors of two frames, sends those of one, and some bytes of the other's if it can."""
    sender = offer_transport(Channel.connect(address, SECRET, "stage"), transport, CPU)
    large = TensorHeader("float32", (LARGE // 4,))
    deliver(sender, [torch.ones(3)])
    sender.send(msgspec.msgpack.encode([large]), [torch.ones(LARGE // 8)] if transport == "auto" else [])
    parent.recv()


@pytest.mark.cluster
@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_killed_while_it_sends_is_noticed_and_replaced(kind: str, is_early: bool, peers: Peers) -> None:
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=send_half, args=(peers.address, KINDS[kind], theirs), daemon=True)
    process.start()
    receiver = accept_transport(peers.accept(), KINDS[kind], CPU)
    assert same(received(receiver), [torch.ones(3)])
    large = (TensorHeader("float32", (LARGE // 4,)),)
    receiving = receiver.receive(large) if is_early else None
    receiver.header()
    receiving = receiving or receiver.receive(large)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises((EOFError, OSError)):
        receiving()
    process.join()
    mine.close()
    receiver.close()
    sender, fresh = peers.transports(KINDS[kind])
    deliver(sender, [torch.ones(3)])
    assert same(received(fresh), [torch.ones(3)])
