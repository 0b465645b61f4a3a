"""Over TCP a channel is TLS with certificates made of its secret: no other peer is heard, none listens in."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest
import trustme

from deployments.submission.server import SubmissionServer
from deployments.transport.acceptor import Acceptor
from deployments.transport.addresses import parse
from deployments.transport.async_channel import AsyncChannel
from deployments.transport.channel import Channel
from deployments.transport.encryption import tls_context
from deployments.transport.handshake import NONCE, UnauthenticatedError
from deployments.transport.roles import STAGE_ROLES
from engine.events import StepEvent
from engine.request import Request

SECRET, OTHER = b"s" * 32, b"o" * 32
ALERT, HANDSHAKE = 21, 22  # the first byte of a record of TLS


@pytest.fixture
def taken() -> queue.Queue[Channel]:
    return queue.Queue()


@pytest.fixture
def address(taken: queue.Queue[Channel]) -> Iterator[str]:
    acceptor = Acceptor(["tcp:127.0.0.1:0"], SECRET, STAGE_ROLES, taken.put)
    acceptor.start()
    yield acceptor.addresses[0]
    acceptor.close()
    while not taken.empty():
        taken.get().close()


def connected(address: str) -> socket.socket:
    return socket.create_connection(parse(address)[1], timeout=10)


def role_of(taken: queue.Queue[Channel]) -> str:
    channel = taken.get(timeout=10)
    channel.close()
    return channel.role


def without_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def of_another_authority() -> ssl.SSLContext:
    context = without_certificate()
    trustme.CA().issue_cert("127.0.0.1", common_name="spectra channel").configure_cert(context)
    return context


def of_another_secret() -> ssl.SSLContext:
    context = tls_context.__wrapped__(OTHER, False)
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("context", [without_certificate, of_another_authority, of_another_secret])
def test_a_client_without_the_certificate_of_the_secret_is_turned_away_unheard(
    address: str, taken: queue.Queue[Channel], context: Callable[[], ssl.SSLContext]
) -> None:
    with pytest.raises(OSError), context().wrap_socket(connected(address)) as peer:  # noqa: PT012
        peer.recv(NONCE)  # in TLS 1.3 the client is done before the server has looked at its certificate
        pytest.fail("the server has sent a nonce")
    Channel.connect(address, SECRET, "steps").close()
    assert role_of(taken) == "steps"


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"steps   " + b"p" * 48])
def test_a_peer_in_clear_gets_an_alert_and_nothing_more(address: str, said: bytes) -> None:
    with connected(address) as peer:
        peer.sendall(said)
        got = b""
        try:
            while piece := peer.recv(100):
                got += piece
        except ConnectionResetError:
            pass
    assert got[:1] in (b"", bytes([ALERT]))
    assert len(got) < NONCE


async def test_a_client_says_nothing_to_a_server_without_the_certificate_of_the_secret() -> None:
    heard: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1", common_name="spectra channel").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp:127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                try:
                    with context.wrap_socket(peer, server_side=True) as stream:
                        stream.sendall(b"n" * NONCE)
                        heard.append(stream.recv(100))
                except OSError:
                    pass

        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(UnauthenticatedError, match="does not know the secret"):
            await asyncio.to_thread(Channel.connect, address, SECRET, "steps")
        with pytest.raises(UnauthenticatedError, match="does not know the secret"):
            await AsyncChannel.connect(address, SECRET, "steps")
        serving.join()
    assert not any(heard)


class Tap:
    """Passes one connection on, and keeps what the client said."""

    def __init__(self, target: str) -> None:
        self.said = b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._server.getsockname()[1]}"
        self._target = target
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(10)

    def _run(self) -> None:
        with self._server, self._server.accept()[0] as client, connected(self._target) as upstream:
            back = threading.Thread(target=self._back, args=(upstream, client), daemon=True)
            back.start()
            while piece := client.recv(1 << 16):
                self.said += piece
                upstream.sendall(piece)
            upstream.shutdown(socket.SHUT_WR)
            back.join(10)

    def _back(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := upstream.recv(1 << 16):
                client.sendall(piece)


def test_a_listener_between_learns_nothing_and_cannot_play_a_recording_again(
    address: str, taken: queue.Queue[Channel]
) -> None:
    tap = Tap(address)
    client = Channel.connect(tap.address, SECRET, "steps")
    server = taken.get(timeout=10)
    client.send(b"the prompt of a client")
    assert server.receive() == b"the prompt of a client"
    client.close()
    server.close()
    tap.join()
    assert tap.said[0] == HANDSHAKE
    assert b"prompt" not in tap.said
    assert b"steps" not in tap.said
    with connected(address) as peer:
        peer.sendall(tap.said)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
    Channel.connect(address, SECRET, "results").close()
    assert role_of(taken) == "results"  # nothing of the recording was taken in


async def idle(request: Request) -> AsyncGenerator[StepEvent, None]:
    for event in ():
        yield event


async def test_ingresses_of_other_nodes_reach_a_router_by_tls_alone() -> None:
    server = SubmissionServer(idle)
    try:
        attachment = await server.attachment("127.0.0.1")
        with pytest.raises(UnauthenticatedError):
            await AsyncChannel.connect(attachment.address, OTHER, "submit")
        (await AsyncChannel.connect(attachment.address, attachment.secret, "submit")).close()
        reader, writer = await asyncio.open_connection(*parse(attachment.address)[1])
        writer.write(b"submit  ")
        assert len(await reader.read()) < NONCE
        writer.close()
    finally:
        await server.close()


def test_a_secret_has_one_certificate_in_every_process(address: str) -> None:
    in_another = tls_context.__wrapped__(SECRET, False)  # as if it had not been made here before
    with in_another.wrap_socket(connected(address)) as peer:
        assert len(peer.recv(NONCE)) == NONCE
