"""Frames of the step path arrive whole and in order; a bad frame or a lost peer ends the channel."""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from deployments.channels import async_channel, channel
from deployments.channels.addresses import listen
from deployments.channels.async_channel import AsyncChannel
from deployments.channels.channel import MAX_FRAME, Channel
from deployments.pipeline.frames import decode_outcome, decode_step_frame
from engine.errors import TargetLostError
from engine.step import decode_result, decode_step
from tests.support.listeners import SECRET, Listener, exchange, hello
from tests.support.waiting import LIMIT_S

PAYLOADS = [b"", b"x", b"spectra" * 1000, bytes(range(256)) * 40_000]  # the last one fills any socket buffer
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("listener", ["unix", "tcp", "tcp6"], indirect=True)
def test_frames_of_every_size_arrive_whole_and_in_order(listener: Listener) -> None:
    client, server = listener.pair()
    assert server.role == "steps"
    exchange(client, server, PAYLOADS)


def test_both_directions_of_a_channel_work_at_once(listener: Listener) -> None:
    client, server = listener.pair()
    with ThreadPoolExecutor() as pool:
        for sender in (client, server):
            pool.submit(lambda by: [by.send(payload) for payload in PAYLOADS], sender)
        got = [pool.submit(lambda by: [by.receive() for _ in PAYLOADS], reader) for reader in (client, server)]
        assert [one.result() for one in got] == [PAYLOADS] * 2
    client.close()


def test_send_now_returns_a_function_that_sends_what_the_kernel_did_not_take(listener: Listener) -> None:
    client, server = listener.pair()
    assert client.send_now(client.frame(b"small")) is None
    assert server.receive() == b"small"
    rest = client.send_now(client.frame(PAYLOADS[-1] * 4))
    assert rest is not None
    with ThreadPoolExecutor() as sending:
        sending.submit(rest)
        assert server.receive() == PAYLOADS[-1] * 4
    exchange(client, server, [b"next"])


def run(main: Callable[[], Awaitable[None]], loop: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(main())  # type: ignore[arg-type]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_asyncio_half_exchanges_frames_with_the_blocking_half(
    listener: Listener, loop: Callable[[], object]
) -> None:
    async def talk() -> None:
        client = await AsyncChannel.connect(listener.address, SECRET, "results")
        server = listener.accept()
        assert server.role == "results"
        for payload in PAYLOADS:
            client.send(payload)
            assert await asyncio.to_thread(server.receive) == payload
            sending = asyncio.create_task(asyncio.to_thread(server.send, payload))
            assert await client.receive() == payload
            await sending
        client.close()

    run(talk, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_loss_of_a_peer_shows_in_receive_and_never_in_send(listener: Listener, loop: Callable[[], object]) -> None:
    async def talk() -> None:
        client = await AsyncChannel.connect(listener.address, SECRET, "results")
        server = listener.accept()
        waiting = asyncio.create_task(client.receive())
        server._socket.sendall(struct.pack("<I", 100) + b"half")
        server.close()
        with pytest.raises(TargetLostError, match="broke"):
            await waiting
        for _ in range(20):
            client.send(b"into the void" * 1000)
            await asyncio.sleep(0)
        client.close()
        client.send(b"after the end")

    run(talk, loop)


@pytest.mark.parametrize("who", ["peer", "self"])
def test_a_waiting_thread_wakes_when_either_end_closes(listener: Listener, who: str) -> None:
    client, server = listener.pair()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.receive)
        (client if who == "peer" else server).close()
        assert isinstance(waiting.exception(LIMIT_S), EOFError | OSError)
    client.close()


async def test_an_address_where_no_process_listens_or_answers_is_a_lost_target(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.close()
    with pytest.raises(TargetLostError, match="no process answers"):
        await AsyncChannel.connect(listener.address, SECRET, "steps")
    with pytest.raises(OSError):
        Channel.connect(listener.address, SECRET, "steps")
    for half in (async_channel, channel):
        monkeypatch.setattr(half, "HANDSHAKE_S", 0.05)
    server, address = listen("tcp:127.0.0.1:0")
    with pytest.raises(TargetLostError, match="too slow"):
        await AsyncChannel.connect(address, SECRET, "steps")
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(Channel.connect, address, SECRET, "steps")
    server.close()


async def test_a_frame_longer_than_the_limit_ends_the_channel(listener: Listener) -> None:
    peer = listener.raw()
    peer.sendall(hello(peer, SECRET))
    server = listener.accept()
    peer.sendall(struct.pack("<I", MAX_FRAME + 1) + b"never read")
    with pytest.raises(EOFError, match="longer than"):
        server.receive()
    peer.close()
    client = await AsyncChannel.connect(listener.address, SECRET, "results")
    listener.accept()._socket.sendall(struct.pack("<I", MAX_FRAME + 1))
    with pytest.raises(TargetLostError, match="longer than"):
        await client.receive()
    client.close()


class Bomb:
    """Runs code when unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return pytest.fail, ("a peer's bytes were unpickled",)


@given(st.binary(max_size=200))
def test_pickles_and_random_bytes_are_refused_with_a_decode_error(garbage: bytes) -> None:
    raws = [pickle.dumps(Bomb(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    wrapped = [
        msgspec.msgpack.encode(form) for raw in raws for form in ([raw, None, None, ""], msgspec.msgpack.Ext(1, raw))
    ]
    for decode in (decode_step, decode_result, decode_step_frame, decode_outcome):
        for bad in (garbage, *raws, *wrapped):
            with pytest.raises(msgspec.DecodeError):
                decode(bad)
