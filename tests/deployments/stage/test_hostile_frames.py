"""A malformed frame costs its connection or its step, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
import torch

from deployments.channels.async_channel import AsyncChannel
from deployments.channels.channel import Channel
from deployments.pipeline.frames import OutcomeFrame, TensorHeader, encode_outcome, encode_step_frame
from deployments.stage.transports.negotiation import TransportOffer
from engine.errors import TargetLostError
from engine.step import Step
from tests.deployments.stage.stage_steps import connected, first_step


def outcome(tensors: Any = (), is_fused: Any = False, error: str = "", rows_at: Any = (), seconds: Any = ()) -> bytes:
    return msgspec.msgpack.encode([tensors, is_fused, error, rows_at, seconds])


EMPTY_STEP = encode_step_frame(Step(1, []))
# Frames that a stage sends one after the other; the last one is malformed.
BAD_FRAMES = [
    [b""],
    [b"\xc1"],
    [msgspec.msgpack.encode([b"no step"])],
    [msgspec.msgpack.encode([b"", [["float64", [1]]]])],
    [encode_step_frame(first_step(), (TensorHeader("float32", (1 << 28, 4)),))],
    [encode_step_frame(first_step(), (TensorHeader("float32", (1, 3, 32)),)), outcome()],
    [EMPTY_STEP, b"\xc1"],
    [EMPTY_STEP, outcome([["float64", [1]]])],
    [EMPTY_STEP, outcome([["float32", [1 << 30, 1 << 30]]])],
    [EMPTY_STEP, outcome([["float32", [0]]] * 3)],
    [EMPTY_STEP, outcome(seconds=("long",))],
    [EMPTY_STEP, outcome(rows_at=7)],
    [EMPTY_STEP, EMPTY_STEP],
]


async def as_a_stage(served: Any) -> Channel:
    """A connection to the last stage that has agreed on a transport."""
    last = served.stages.workers[-1]
    peer = await asyncio.to_thread(Channel.connect, last.address, served.stages.endpoints.secret, "stage")
    peer.send(msgspec.msgpack.encode(TransportOffer(("socket",), "cpu")))
    await asyncio.to_thread(peer.receive)  # the choice
    return peer


async def test_a_malformed_frame_of_a_stage_costs_its_connection_only(serving: Any) -> None:
    async with serving(2) as served:
        pipeline = await connected(served)
        pipeline.send(first_step())
        before = await pipeline.receive()
        pipeline.close()
        for frames in BAD_FRAMES:
            hostile = await as_a_stage(served)
            for frame in frames:
                hostile.send(frame)
            with pytest.raises((EOFError, OSError)):
                await asyncio.to_thread(hostile.receive)
            hostile.close()
        pipeline = await served.connect()
        pipeline.send(first_step())
        assert (await pipeline.receive()).results == before.results
        pipeline._steps.send(
            encode_step_frame(first_step(), (TensorHeader("float32", (1, 3, 32)),))
        )  # a router has none
        with pytest.raises(TargetLostError, match="broke"):
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
            headers = (TensorHeader.of(hidden),)
            peer.send(encode_step_frame(first_step(), headers))
            peer.send(encode_outcome(OutcomeFrame(headers)))
            peer.send_all([memoryview(hidden.reshape(-1).view(torch.uint8).numpy())])
            answer = msgspec.msgpack.decode(await results.receive())
            assert answer["error"]
        peer.close()
        results.close()
