"""The step path's transport: frames arrive whole, and only peers that know the secret are heard."""

from __future__ import annotations

import asyncio
import pickle
import queue
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from deployments.pipeline.frames import decode_frame
from deployments.transport import async_channel, channel
from deployments.transport.addresses import listen
from deployments.transport.async_channel import AsyncChannel
from deployments.transport.channel import MAX_FRAME, Channel
from engine.errors import TargetLostError
from engine.step import decode_result, decode_step
from tests.support.listeners import SECRET, Listener, exchange, hello

PAYLOADS = [b"", b"x", b"spectra" * 1000, bytes(range(256)) * 40_000]  # the last one fills any socket buffer


def test_what_the_kernel_does_not_take_at_once_is_sent_by_what_send_now_returns(listener: Listener) -> None:
    client = Channel.connect(listener.address, SECRET, "steps")
    server = listener.accepted.get(timeout=5)
    assert client.send_now(client.frame(b"small")) is None
    assert server.receive() == b"small"
    rest = client.send_now(client.frame(PAYLOADS[-1] * 4))
    assert rest is not None
    with ThreadPoolExecutor() as sending:
        sending.submit(rest)
        assert server.receive() == PAYLOADS[-1] * 4
    client.send(b"next")
    assert server.receive() == b"next"
    client.close()


def test_both_directions_are_used_at_once(listener: Listener) -> None:
    client = Channel.connect(listener.address, SECRET, "steps")
    server = listener.accepted.get(timeout=5)
    with ThreadPoolExecutor() as pool:
        for sender in (client, server):
            pool.submit(lambda by: [by.send(payload) for payload in PAYLOADS * 3], sender)
        got = [pool.submit(lambda by: [by.receive() for _ in PAYLOADS * 3], reader) for reader in (client, server)]
        assert [one.result() for one in got] == [PAYLOADS * 3] * 2
    client.close()


def test_frames_of_every_size_arrive_whole_and_in_order(listener: Listener) -> None:
    client = Channel.connect(listener.address, SECRET, "steps")
    server = listener.accepted.get(timeout=5)
    assert server.role == "steps"
    exchange(client, server, PAYLOADS)
    client.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_asyncio_half_speaks_to_the_blocking_half(listener: Listener, loop: Callable[[], object]) -> None:
    async def talk() -> None:
        client = await AsyncChannel.connect(listener.address, SECRET, "results")
        server = listener.accepted.get(timeout=5)
        assert server.role == "results"
        for payload in PAYLOADS:
            client.send(payload)
            assert await asyncio.to_thread(server.receive) == payload
            sending = asyncio.create_task(asyncio.to_thread(server.send, payload))
            assert await client.receive() == payload
            await sending
        client.close()

    run(talk, loop)


def run(main: Callable[[], Awaitable[None]], loop: Callable[[], object] = asyncio.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(main())  # type: ignore[arg-type]


async def test_where_no_process_listens_the_target_is_lost(listener: Listener) -> None:
    listener.close()
    with pytest.raises(TargetLostError, match="no process answers"):
        await AsyncChannel.connect(listener.address, SECRET, "steps")
    with pytest.raises(OSError):
        Channel.connect(listener.address, SECRET, "steps")


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for half in (async_channel, channel):
        monkeypatch.setattr(half, "HANDSHAKE_S", 0.2)
    server, address = listen("tcp:127.0.0.1:0")
    with pytest.raises(TargetLostError, match="too slow"):
        await AsyncChannel.connect(address, SECRET, "steps")
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(Channel.connect, address, SECRET, "steps")
    server.close()


def test_a_frame_that_claims_too_much_ends_the_channel(listener: Listener) -> None:
    peer = listener.raw()
    peer.sendall(hello(peer, SECRET))
    server = listener.accepted.get(timeout=5)
    peer.sendall(struct.pack("<I", MAX_FRAME + 1) + b"never read")
    with pytest.raises(EOFError, match="longer than"):
        server.receive()
    peer.close()


async def test_the_asyncio_half_takes_no_longer_frame_either(listener: Listener) -> None:
    client = await AsyncChannel.connect(listener.address, SECRET, "results")
    server = listener.accepted.get(timeout=5)
    server._socket.sendall(struct.pack("<I", MAX_FRAME + 1))
    with pytest.raises(TargetLostError, match="longer than"):
        await client.receive()
    client.close()


@pytest.mark.parametrize("who", ["peer", "self"])
def test_a_waiting_thread_wakes_when_either_end_closes(listener: Listener, who: str) -> None:
    client = Channel.connect(listener.address, SECRET, "steps")
    server = listener.accepted.get(timeout=5)
    ended: queue.Queue[BaseException] = queue.Queue()

    def wait() -> None:
        try:
            server.receive()
        except (EOFError, OSError) as error:
            ended.put(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    (client if who == "peer" else server).close()
    assert isinstance(ended.get(timeout=5), EOFError | OSError)
    thread.join(5)
    client.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_peer_that_dies_in_mid_frame_shows_in_receive_and_never_in_send(
    listener: Listener, loop: Callable[[], object]
) -> None:
    async def talk() -> None:
        client = await AsyncChannel.connect(listener.address, SECRET, "results")
        server = listener.accepted.get(timeout=5)
        waiting = asyncio.create_task(client.receive())
        server._socket.sendall(struct.pack("<I", 100) + b"half")
        await asyncio.sleep(0.05)
        server.close()
        with pytest.raises(TargetLostError, match="broke"):
            await waiting
        for _ in range(20):
            client.send(b"into the void" * 1000)
            await asyncio.sleep(0)
        client.close()
        client.send(b"after the end")

    run(talk, loop)


class Bomb:
    """Runs code when unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return pytest.fail, ("a peer's bytes were unpickled",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_garbage_on_the_step_path(protocol: int) -> None:
    raw = pickle.dumps(Bomb(), protocol)
    wrapped = msgspec.msgpack.encode([raw, None, None, ""])
    for decode in (decode_step, decode_result, decode_frame):
        for bad in (raw, wrapped, msgspec.msgpack.encode(msgspec.msgpack.Ext(1, raw))):
            with pytest.raises(msgspec.DecodeError):
                decode(bad)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_decode_error(raw: bytes) -> None:
    for decode in (decode_step, decode_result, decode_frame):
        with pytest.raises(msgspec.DecodeError):
            decode(raw)
