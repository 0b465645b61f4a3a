"""The channel between ingress and router: many requests on one connection, and nothing left of a lost ingress."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from deployments.channels.async_channel import AsyncChannel
from deployments.channels.handshake import ClientHandshake
from deployments.submission import ingress_connection
from deployments.submission.protocol import (
    SILENT_BEATS,
    SUBMIT,
    Attachment,
    Cancel,
    Heartbeat,
    Submit,
    decode_events,
    encode,
)
from deployments.submission.router_connection import RouterConnection
from engine.errors import OverloadedError, PromptTooLongError, RequestError, StepFailedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.deployments.conftest import METHODS, Serving, job_of
from tests.deployments.slow_stage import GATE, Gated
from tests.support.submission import REQUEST, EndlessRequests, check_figures, submitting, tokens
from tests.support.waiting import wait_until_async

ENDLESS: dict[str, Any] = {"max_tokens": 900, "stop_ids": ()}


async def read(stream: AsyncGenerator[StepEvent, None]) -> None:
    """Read until the stream ends."""
    async for _ in stream:
        pass


async def test_many_requests_on_one_connection_get_the_offline_engines_texts(serving: Serving) -> None:
    jobs = [job_of(number, METHODS[number % 4], temperature=0.8) for number in range(12)]
    async with serving(max_sequences=6) as served, submitting(served.router.stream) as pair:
        answers = await asyncio.gather(*(pair.answer(job) for job in jobs))
        assert pair.n_connected == pair.attached == 1
        for job, events in zip(jobs, answers, strict=True):
            assert tokens(events) == served.offline(job).token_ids
            check_figures(events, len(job.prompt))
        connection = await RouterConnection.connect(await pair.server.attachment("127.0.0.1"))
        over_tcp: list[StepEvent] = []
        stream = connection.run(jobs[0])
        while not over_tcp or over_tcp[-1].finish_reason is None:
            over_tcp.append(await anext(stream))
        await stream.aclose()
        connection.close()
        assert tokens(over_tcp) == served.offline(jobs[0]).token_ids


async def test_every_field_of_a_request_reaches_the_router() -> None:
    seen: list[Request] = []

    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        seen.append(request)
        yield StepEvent(token_ids=[1], finish_reason="stop")

    given: dict[str, Any] = {"prompt": [5], "params": SamplingParams(max_tokens=4), "max_nodes": 3}
    for field in msgspec.structs.fields(Request):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        other = {str: "x", int: 3, bool: not default, list: [7]}
        given.setdefault(field.name, other.get(type(default)))
    request = Request(**given)
    async with submitting(run) as pair:
        await pair.answer(request)
    assert seen == [request]


async def test_errors_keep_their_type_and_fields_and_fail_no_other_request(serving: Serving) -> None:
    job = job_of(3)
    async with (
        serving(1, [Gated], max_sequences=1, max_waiting=2) as served,
        submitting(served.router.stream) as pair,
    ):
        with pytest.raises(PromptTooLongError) as refused:
            await pair.answer(msgspec.structs.replace(job, prompt=[1] * 5000))
        assert refused.value.param == "prompt"
        GATE.close()
        crowd = [asyncio.create_task(pair.answer(job)) for _ in range(3)]
        await wait_until_async(lambda: len(served.router._sessions) == 3)
        with pytest.raises(OverloadedError) as overloaded:
            await pair.answer(job)
        assert overloaded.value.retry_after > 0
        GATE.open()
        assert [tokens(await answer) for answer in crowd] == [served.offline(job).token_ids] * 3
        assert pair.n_connected == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"id": "bug"}, StepFailedError),
        ({"id": "wide"}, StepFailedError),  # an event that cannot be encoded
        ({"params": SamplingParams(max_tokens=5, top_k=2**64)}, RequestError),  # nor can the request
    ],
)
async def test_a_request_that_fails_in_router_or_encoding_fails_alone(
    wrong: dict[str, Any], error: type[Exception]
) -> None:
    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        if request.id == "bug":
            raise ZeroDivisionError
        yield StepEvent(token_ids=[2**64 if request.id == "wide" else 3], finish_reason="stop")

    async with submitting(run) as pair:
        requests = (REQUEST, msgspec.structs.replace(REQUEST, **wrong), REQUEST)
        answers = await asyncio.gather(*map(pair.answer, requests), return_exceptions=True)
        assert isinstance(answers.pop(1), error)
        assert [tokens(answer) for answer in (*answers, await pair.answer(REQUEST))] == [[3]] * 3  # type: ignore[arg-type]
        assert pair.n_connected == pair.attached == 1


async def test_closed_streams_and_a_lost_ingress_leave_nothing_and_others_continue(serving: Serving) -> None:
    job = job_of(1, "pld", temperature=0.8, max_tokens=100, stop_ids=())
    async with serving() as served, submitting(served.router.stream) as pair:
        staying = asyncio.create_task(pair.answer(job))
        orphan = await pair.peer()
        orphan.send(encode([Submit(n, job_of(n, METHODS[n % 4], **ENDLESS)) for n in range(2, 8)]))
        assert decode_events(await orphan.receive())
        streams = [pair.channel.stream(job_of(n, METHODS[n % 4], **ENDLESS)) for n in range(4)]
        await anext(streams[0])
        readers = [asyncio.create_task(read(stream)) for stream in streams]
        await wait_until_async(lambda: len(served.router._sessions) >= 10)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        orphan.close()
        await wait_until_async(lambda: len(served.router._sessions) <= 1 and pair.n_connected == 1)
        assert tokens(await staying) == served.offline(job).token_ids
        await served.settled()


async def test_an_ingress_that_does_not_read_is_cut_off_and_costs_a_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ingress_connection, "MAX_UNREAD", limit := 1 << 20)
    endless, modest = EndlessRequests(n_tokens=100_000), EndlessRequests()

    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        async for event in (endless if request.id == "much" else modest).run(request):
            yield event

    async with submitting(run) as pair:
        stream = pair.channel.stream(REQUEST)
        await anext(stream)
        attachment = await pair.server.attachment()
        reader, writer = await asyncio.open_unix_connection(attachment.address.removeprefix("unix:"), limit=64)
        lazy = AsyncChannel(reader, writer)
        await lazy._shake_hands(ClientHandshake(attachment.secret, SUBMIT, attachment.address))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await wait_until_async(lambda: pair.n_connected == 2)
        lazy.send(encode([Submit(0, msgspec.structs.replace(REQUEST, id="much"))]))
        await wait_until_async(lambda: pair.n_connected == 1)
        assert endless.alive == 0
        [unread] = [record.args[0] for record in caplog.records if "bytes unread" in record.msg]  # type: ignore[index]
        assert limit < unread < limit + 3 * 100_000
        for _ in range(5):
            await anext(stream)  # an ingress that reads goes on
        await stream.aclose()
        lazy.close()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x91\x01",
        random.Random(1).randbytes(200),
        msgspec.msgpack.encode([["s", 1, {"id": "x", "prompt": ["a"], "params": {}}]]),
        encode([Submit(0, REQUEST), Submit(0, REQUEST)]),
        msgspec.msgpack.encode([["q", 1]]),
    ],
    ids=str,
)
async def test_a_malformed_frame_costs_its_connection_and_nothing_else(frame: bytes) -> None:
    endless = EndlessRequests()
    async with submitting(endless.run) as pair:
        stream = pair.channel.stream(REQUEST)
        await anext(stream)
        peer = await pair.peer()
        await wait_until_async(lambda: pair.n_connected == 2)
        peer.send(frame)
        await wait_until_async(lambda: pair.n_connected == 1)
        assert endless.alive == 1
        with pytest.raises(TargetLostError):
            await peer.receive()
        peer.close()
        await anext(stream)
        await stream.aclose()


async def test_strangers_are_turned_away_and_a_silent_one_keeps_no_ingress_waiting() -> None:
    async with submitting(EndlessRequests().run) as pair:
        attachment = await pair.server.attachment()
        for secret, role in ((b"x" * 32, SUBMIT), (attachment.secret, "steps")):
            with pytest.raises(TargetLostError):
                await AsyncChannel.connect(attachment.address, secret, role)
        with pytest.raises(TargetLostError):  # an ingress does not trust a router with another secret
            await RouterConnection.connect(Attachment(attachment.address, b"y" * 32))
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(attachment.address.removeprefix("unix:"))
            connection = await RouterConnection.connect(attachment)
            assert pair.n_connected == 1
            connection.close()


async def test_a_request_cancelled_before_it_began_never_runs() -> None:
    endless = EndlessRequests()
    async with submitting(endless.run) as pair:
        peer = await pair.peer()
        peer.send(encode([Submit(0, REQUEST), Cancel(0), Cancel(0), Cancel(99)]))
        peer.send(encode([]))
        assert decode_events(await peer.receive()) == []
        assert endless.alive == 0
        peer.send(encode([Submit(0, REQUEST)]))  # its number is free again
        [event] = decode_events(await peer.receive())
        assert getattr(event, "number", None) == 0
        peer.close()


async def test_a_silent_ingress_is_cut_off_and_heartbeats_keep_a_quiet_one(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat, endless = Heartbeat(0.0), EndlessRequests()
    assert [await heartbeat.beat() for _ in range(SILENT_BEATS + 1)] == [True] * SILENT_BEATS + [False]
    n_heard = 0

    def heard(self: Heartbeat) -> None:
        nonlocal n_heard
        n_heard += 1
        self._missed = 0

    monkeypatch.setattr(Heartbeat, "heard", heard)
    async with submitting(endless.run, beat=0.01) as pair:
        silent = await pair.peer()
        silent.send(encode([Submit(0, REQUEST)]))
        await pair.channel.check_ready()
        await wait_until_async(lambda: n_heard > 4 * SILENT_BEATS and pair.n_connected == 1)
        assert endless.alive == 0
        await pair.channel.check_ready()
        assert pair.attached == 1
        silent.close()
