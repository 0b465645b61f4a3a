"""The step path's transport: frames arrive whole, and only peers that know the secret are heard."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import queue
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from deployments.pipeline.frames import decode_frame
from deployments.transport import channel as channel_module
from deployments.transport.addresses import listen, parse
from deployments.transport.channel import MAX_FRAME, AsyncChannel, Channel
from deployments.transport.encryption import tls_context
from deployments.transport.handshake import NONCE, PROOF, ROLE, UnauthenticatedError, proof
from deployments.transport.roles import STAGE_ROLES
from engine.errors import TargetLostError
from engine.step import decode_result, decode_step

SECRET = b"s" * 32
PAYLOADS = [b"", b"x", b"spectra" * 1000, bytes(range(256)) * 40_000]  # the last one fills any socket buffer


class Listener:
    """Accepts peers one after the other in a thread, as a stage does."""

    def __init__(self, address: str) -> None:
        self._server, self.address = listen(address)
        self.accepted: queue.Queue[Channel] = queue.Queue()
        self.refused: queue.Queue[UnauthenticatedError] = queue.Queue()
        self._channels: list[Channel] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            try:
                Channel.accept(connection, SECRET, STAGE_ROLES, self._register)
            except UnauthenticatedError as error:
                self.refused.put(error)

    def _register(self, channel: Channel) -> None:
        self._channels.append(channel)
        self.accepted.put(channel)

    def raw(self) -> socket.socket:
        """A connection without a handshake, but for that of TLS over TCP."""
        family, where = parse(self.address)
        peer = socket.socket(family, socket.SOCK_STREAM)
        peer.settimeout(5)
        peer.connect(where)
        return peer if family == socket.AF_UNIX else tls_context(SECRET, False).wrap_socket(peer)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed before
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for channel in self._channels:
            channel.close()


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    with tempfile.TemporaryDirectory(prefix="ch-") as folder:
        made = Listener(f"unix:{folder}/s" if request.param == "unix" else "tcp:127.0.0.1:0")
        yield made
        made.close()


def hello(peer: socket.socket, secret: bytes, role: bytes = b"steps") -> bytes:
    """What a client of ours would send, made with ``secret``."""
    padded = role.ljust(ROLE)
    return padded + proof(secret, peer.recv(NONCE), padded) + b"m" * NONCE


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


def exchange(client: Channel, server: Channel, payloads: list[bytes]) -> None:
    """Everything there and back, in order."""
    echo = threading.Thread(target=lambda: [server.send(server.receive()) for _ in payloads])
    echo.start()
    for payload in payloads:
        client.send(payload)
        assert client.receive() == payload
    echo.join(5)


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


def test_a_peer_with_the_wrong_secret_is_turned_away_unheard_and_the_right_one_is_served_next(
    listener: Listener,
) -> None:
    stranger = listener.raw()
    stranger.sendall(hello(stranger, b"wrong" * 8) + struct.pack("<I", 4) + b"evil")
    assert "turned away" in str(listener.refused.get(timeout=5))
    assert listener.accepted.empty()  # no channel exists that could have read the payload
    with contextlib.suppress(ConnectionResetError):  # as its payload is still unread
        assert stranger.recv(PROOF) == b""  # and it learns nothing made with the secret
    stranger.close()
    with pytest.raises((UnauthenticatedError, EOFError)):
        Channel.connect(listener.address, b"wrong" * 8, "steps")
    client = Channel.connect(listener.address, SECRET, "steps")
    exchange(client, listener.accepted.get(timeout=5), [b"right"])
    client.close()


async def test_the_asyncio_half_is_turned_away_too(listener: Listener) -> None:
    with pytest.raises(TargetLostError):
        await AsyncChannel.connect(listener.address, b"wrong" * 8, "steps")
    client = await AsyncChannel.connect(listener.address, SECRET, "steps")
    client.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 20, b"x" * 1000], ids=len)
def test_a_peer_that_breaks_off_in_the_handshake_harms_no_other(listener: Listener, said: bytes) -> None:
    stranger = listener.raw()
    stranger.sendall(said)
    stranger.close()
    listener.refused.get(timeout=5)
    client = Channel.connect(listener.address, SECRET, "steps")
    exchange(client, listener.accepted.get(timeout=5), [b"right"])
    client.close()


def test_a_recorded_handshake_cannot_be_played_again(listener: Listener) -> None:
    first = listener.raw()
    recorded = hello(first, SECRET)
    first.sendall(recorded)
    assert len(first.recv(PROOF)) == PROOF
    second = listener.raw()
    second.sendall(recorded)
    assert "turned away" in str(listener.refused.get(timeout=5))
    first.close()
    second.close()


def test_a_proof_for_one_role_opens_no_other(listener: Listener) -> None:
    stranger = listener.raw()
    recorded = hello(stranger, SECRET, b"results")
    stranger.sendall(b"steps".ljust(ROLE) + recorded[ROLE:])
    assert "turned away" in str(listener.refused.get(timeout=5))
    stranger.close()


def test_a_peer_that_trickles_has_no_more_time_than_one_that_is_silent(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HANDSHAKE_S", 0.3)
    began = time.monotonic()
    stranger = listener.raw()
    for _ in range(20):  # a byte every 50 ms: each receive is in time, the whole is not
        try:
            stranger.sendall(b"x")
        except OSError:
            break
        time.sleep(0.05)
    assert "broke off" in str(listener.refused.get(timeout=5))
    assert time.monotonic() - began < 2
    stranger.close()


def impostor(listener: Listener) -> str:
    """A server at a new address that has heard of the protocol, but not the secret."""
    family, where = parse(listener.address)
    server, address = listen(f"unix:{where}2" if family == socket.AF_UNIX else "tcp:127.0.0.1:0")

    def serve() -> None:
        for _ in range(2):
            peer, _ = server.accept()
            if family != socket.AF_UNIX:
                peer = tls_context(SECRET, True).wrap_socket(peer, server_side=True)
            peer.sendall(b"n" * NONCE)
            said = peer.recv(ROLE + PROOF + NONCE)
            peer.sendall(proof(b"guess", said[-NONCE:], b"server"))
            peer.close()
        server.close()

    threading.Thread(target=serve, daemon=True).start()
    return address


async def test_a_client_refuses_a_server_that_does_not_know_the_secret(listener: Listener) -> None:
    address = impostor(listener)
    with pytest.raises(UnauthenticatedError):
        await asyncio.to_thread(Channel.connect, address, SECRET, "steps")
    with pytest.raises(UnauthenticatedError):
        await AsyncChannel.connect(address, SECRET, "steps")


async def test_where_no_process_listens_the_target_is_lost(listener: Listener) -> None:
    listener.close()
    with pytest.raises(TargetLostError, match="no process answers"):
        await AsyncChannel.connect(listener.address, SECRET, "steps")
    with pytest.raises(OSError):
        Channel.connect(listener.address, SECRET, "steps")


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "HANDSHAKE_S", 0.2)
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
