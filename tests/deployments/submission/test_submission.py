"""The channel between ingress and router: many requests on one connection, and nothing left of a lost ingress."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest

from deployments.submission import ingress_connection
from deployments.submission.protocol import SUBMIT, Attachment, Cancel, Submit, decode_events, encode
from deployments.submission.router_connection import FRAME_BYTES, RouterConnection
from deployments.transport.async_channel import AsyncChannel
from deployments.transport.handshake import ClientHandshake
from engine.errors import OverloadedError, PromptTooLongError, RequestError, StepFailedError, TargetLostError
from engine.events import StepEvent, TokenLogprob
from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.support.submission import METHODS, REQUEST, Endless, check_figures, submitting, tokens, until

MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


async def test_many_requests_on_one_connection_get_the_offline_engines_texts(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], temperature=0.8) for number in range(12)]
    async with serving(max_sequences=6) as served, submitting(served.router.stream) as pair:
        answers = await asyncio.gather(*(pair.answer(job) for job in jobs))
        assert pair.n_connected == pair.attached == 1
        for job, events in zip(jobs, answers, strict=True):
            assert tokens(events) == offline(job).token_ids
            check_figures(events, len(job.prompt))
        await served.settled()


async def test_events_of_one_turn_of_the_event_loop_share_a_frame() -> None:
    turn = asyncio.Event()

    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        await turn.wait()
        yield StepEvent(token_ids=[int(request.id)], finish_reason="stop")

    async with submitting(run) as pair:
        attachment = await pair.server.attachment()
        peer = await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT)
        peer.send(encode([Submit(n, msgspec.structs.replace(REQUEST, id=str(n))) for n in range(50)]))
        peer.send(encode([]))
        assert decode_events(await peer.receive()) == []  # all of them have been taken in
        turn.set()
        received = decode_events(await peer.receive())
        assert [(item.number, item.event and item.event.token_ids) for item in received] == [
            (n, [n]) for n in range(50)
        ]
        peer.close()


async def test_an_error_arrives_as_what_it_was_and_others_do_not_notice(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(3)
    async with serving(max_sequences=1, max_waiting=2) as served, submitting(served.router.stream) as pair:
        wrong = msgspec.structs.replace(job, prompt=[1] * 5000)
        with pytest.raises(PromptTooLongError) as refused:
            await pair.answer(wrong)
        assert refused.value.param == "prompt"
        crowd = await asyncio.gather(*(pair.answer(job) for _ in range(8)), return_exceptions=True)
        turned_away = [answer for answer in crowd if isinstance(answer, BaseException)]
        assert turned_away
        assert all(isinstance(error, OverloadedError) and error.retry_after > 0 for error in turned_away)
        assert all(tokens(events) == offline(job).token_ids for events in crowd if isinstance(events, list))
        assert pair.n_connected == 1
        await served.settled()


async def test_a_bug_in_the_router_fails_its_request_only() -> None:
    endless = Endless()

    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        if request.id == "bad":
            raise ZeroDivisionError
        async for event in endless.run(request):
            yield event

    async with submitting(run) as pair:
        stream = pair.channel.stream(REQUEST)
        await anext(stream)
        with pytest.raises(StepFailedError):
            await pair.answer(msgspec.structs.replace(REQUEST, id="bad"))
        await anext(stream)
        await stream.aclose()


async def read(stream: AsyncGenerator[StepEvent, None]) -> None:
    """Read until the stream ends."""
    async for _ in stream:
        pass


@pytest.mark.parametrize("n_seen", [0, 1, 5])
async def test_a_stream_that_is_closed_frees_everything(n_seen: int, serving: Any, make_job: MakeJob) -> None:
    async with serving() as served, submitting(served.router.stream) as pair:
        streams = [
            pair.channel.stream(make_job(number, METHODS[number % 4], max_tokens=600, stop_ids=()))
            for number in range(6)
        ]

        readers = [asyncio.create_task(read(stream)) for stream in streams]
        await until(lambda: pair.n_connected == 1)  # a reader that is cancelled before gives it up
        await until(lambda: len(served.router._sessions) == 6 if n_seen == 0 else True)
        await asyncio.sleep(0.01 * n_seen)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await asyncio.gather(*(stream.aclose() for stream in streams))
        await served.settled()
        assert pair.n_connected == 1  # the connection stays


async def test_an_ingress_that_vanishes_leaves_nothing_behind_and_others_go_on(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(1, "pld", temperature=0.8, max_tokens=200, stop_ids=())
    async with serving() as served, submitting(served.router.stream) as pair:
        attachment = await pair.server.attachment()
        orphan = await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT)
        staying = asyncio.create_task(pair.answer(job))
        requests = [make_job(n, METHODS[n % 4], max_tokens=900, stop_ids=()) for n in range(2, 8)]
        orphan.send(encode([Submit(n, request) for n, request in enumerate(requests)]))
        assert decode_events(await orphan.receive())
        orphan.close()
        assert tokens(await staying) == offline(job).token_ids
        await until(lambda: pair.n_connected == 1)
        await served.settled()


async def test_an_ingress_that_does_not_read_is_cut_off_and_costs_a_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ingress_connection, "MAX_UNREAD", limit := 1 << 20)
    endless, modest = Endless(n_tokens=100_000), Endless()

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
        await until(lambda: pair.n_connected == 2)
        lazy.send(encode([Submit(0, msgspec.structs.replace(REQUEST, id="much"))]))
        await until(lambda: pair.n_connected == 1)
        assert endless.alive == 0
        [unread] = [record.args[0] for record in caplog.records if "bytes unread" in record.msg]
        assert limit < unread < limit + 3 * 100_000  # it has not been taken for a silent one
        for _ in range(5):
            await anext(stream)  # an ingress that reads goes on
        await stream.aclose()
        lazy.close()


async def test_an_ingress_that_reads_gets_a_long_frame_whole_beside_a_stream_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingress_connection, "MAX_UNREAD", 1 << 20)
    endless, told = Endless(pause=0.0), [TokenLogprob(7, -0.5, ((7, -0.5),) * 20)] * 100_000

    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        if request.id == "long":
            yield StepEvent(token_ids=[1], finish_reason="stop", prompt_logprobs=told)
            return
        async for event in endless.run(request):
            yield event

    async with submitting(run) as pair:
        stream = pair.channel.stream(REQUEST)
        reading = asyncio.create_task(read(stream))
        await until(lambda: endless.alive == 1)
        [event] = await pair.answer(msgspec.structs.replace(REQUEST, id="long"))
        assert event.prompt_logprobs == told
        assert len(msgspec.msgpack.encode(told)) > 20e6  # more than the kernel takes at once
        assert pair.attached == pair.n_connected == endless.alive == 1
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x91\x01",
        random.Random(1).randbytes(200),
        msgspec.msgpack.encode([["s", 1, {"id": "x"}]]),
        msgspec.msgpack.encode([["s", 1, {"id": "x", "prompt": ["a"], "params": {}}]]),
        encode([Submit(0, REQUEST), Submit(0, REQUEST)]),
        msgspec.msgpack.encode([["q", 1]]),
    ],
    ids=str,
)
async def test_a_malformed_frame_costs_its_connection_and_nothing_else(frame: bytes) -> None:
    endless = Endless()
    async with submitting(endless.run) as pair:
        stream = pair.channel.stream(REQUEST)
        await anext(stream)
        attachment = await pair.server.attachment()
        peer = await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT)
        await until(lambda: pair.n_connected == 2)
        peer.send(frame)
        await until(lambda: pair.n_connected == 1)
        assert endless.alive == 1
        with pytest.raises(TargetLostError):
            await asyncio.wait_for(peer.receive(), 120)
        peer.close()
        for _ in range(3):
            await anext(stream)
        await stream.aclose()


async def test_a_peer_without_the_secret_or_with_another_role_is_turned_away() -> None:
    async with submitting(Endless().run) as pair:
        attachment = await pair.server.attachment()
        for secret, role in ((b"x" * 32, SUBMIT), (attachment.secret, "steps")):
            with pytest.raises(TargetLostError):
                await AsyncChannel.connect(attachment.address, secret, role)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(attachment.address.removeprefix("unix:"))
            # A stranger that says nothing keeps no ingress waiting.
            connection = await RouterConnection.connect(attachment)
            assert pair.n_connected == 1
            connection.close()


async def test_a_router_with_the_wrong_secret_is_none() -> None:
    async with submitting(Endless().run) as pair:
        attachment = await pair.server.attachment()
        with pytest.raises(TargetLostError):
            await RouterConnection.connect(Attachment(attachment.address, b"y" * 32))


async def test_the_same_channel_works_over_tcp(serving: Any, make_job: MakeJob, offline: Offline) -> None:
    job = make_job(2, "pld")
    async with serving() as served, submitting(served.router.stream) as pair:
        connection = await RouterConnection.connect(await pair.server.attachment("127.0.0.1"))
        stream = connection.run(job)
        events = [await anext(stream)]
        while events[-1].finish_reason is None:
            events.append(await anext(stream))
        await stream.aclose()
        connection.close()
        assert tokens(events) == offline(job).token_ids
        await served.settled()


async def test_a_request_cancelled_before_it_began_never_runs() -> None:
    endless = Endless()
    async with submitting(endless.run) as pair:
        attachment = await pair.server.attachment()
        peer = await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT)
        peer.send(encode([Submit(0, REQUEST), Cancel(0), Cancel(0), Cancel(99)]))
        peer.send(encode([]))
        assert decode_events(await peer.receive()) == []
        assert endless.alive == 0
        peer.send(encode([Submit(0, REQUEST)]))  # its number is free again
        assert decode_events(await peer.receive())[0].number == 0
        peer.close()


async def until_broken(peer: AsyncChannel) -> None:
    """Read until the channel breaks."""
    while True:
        await peer.receive()


async def test_a_silent_ingress_is_cut_off() -> None:
    endless = Endless()
    async with submitting(endless.run, beat=0.02) as pair:
        attachment = await pair.server.attachment()
        peer = await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT)
        peer.send(encode([Submit(0, REQUEST)]))
        try:
            await until(lambda: endless.alive == 1)
            await until(lambda: endless.alive == 0 and pair.n_connected == 0)
            with pytest.raises(TargetLostError):
                await until_broken(peer)
        finally:
            peer.close()


async def test_heartbeats_keep_a_quiet_connection_open() -> None:
    quiet = asyncio.Event()

    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        await quiet.wait()
        yield StepEvent(token_ids=[1], finish_reason="stop")

    async with submitting(run, beat=0.05) as pair:
        answer = asyncio.create_task(pair.answer(REQUEST))
        await asyncio.sleep(0.6)  # more than twice as long as silence may last
        quiet.set()
        assert tokens(await answer) == [1]
        assert pair.attached == 1


async def test_a_request_that_cannot_be_encoded_fails_alone() -> None:
    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[len(request.prompt)], finish_reason="stop")

    too_wide = msgspec.structs.replace(REQUEST, params=SamplingParams(max_tokens=5, top_k=2**64))
    async with submitting(run) as pair:
        answers = await asyncio.gather(
            *(pair.answer(request) for request in (REQUEST, too_wide, REQUEST)), return_exceptions=True
        )
        assert [tokens(answer) for answer in (answers[0], answers[2])] == [[3], [3]]
        assert isinstance(answers[1], RequestError)
        assert tokens(await pair.answer(REQUEST)) == [3]
        assert pair.n_connected == pair.attached == 1


async def test_an_event_that_cannot_be_encoded_fails_its_request_alone() -> None:
    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[int(request.id)], finish_reason="stop")

    ids = ("5", str(2**64), "6")
    async with submitting(run) as pair:
        answers = await asyncio.gather(
            *(pair.answer(msgspec.structs.replace(REQUEST, id=name)) for name in ids), return_exceptions=True
        )
        assert [tokens(answer) for answer in (answers[0], answers[2])] == [[5], [6]]
        assert isinstance(answers[1], StepFailedError)
        assert tokens(await pair.answer(msgspec.structs.replace(REQUEST, id="7"))) == [7]
        assert pair.n_connected == pair.attached == 1


async def test_long_requests_share_no_frame_that_the_router_would_decode_for_long() -> None:
    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[len(request.prompt)], finish_reason="stop")

    long = msgspec.structs.replace(REQUEST, prompt=[2**16] * 60_000)
    async with submitting(run) as pair:
        await pair.answer(REQUEST)
        sizes: list[int] = []
        connection = pair.channel._connection
        assert connection is not None
        send = connection._channel.send

        def record(frame: bytes) -> None:
            sizes.append(len(frame))
            send(frame)

        connection._channel.send = record  # type: ignore[method-assign]
        answers = await asyncio.gather(*(pair.answer(long) for _ in range(6)), pair.answer(REQUEST))
        assert [tokens(answer) for answer in answers] == [[60_000]] * 6 + [[3]]
    assert max(sizes) < FRAME_BYTES + len(encode([Submit(0, long)]))
