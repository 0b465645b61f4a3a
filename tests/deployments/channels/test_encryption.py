"""Over TCP a channel is TLS with certificates made from its secret: no other peer is heard, and nobody listens in."""

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

from deployments.channels.acceptor import Acceptor
from deployments.channels.addresses import parse
from deployments.channels.async_channel import AsyncChannel
from deployments.channels.channel import Channel
from deployments.channels.handshake import NONCE, STAGE_ROLES, UnauthenticatedError
from deployments.channels.tls import tls_context
from deployments.submission.server import SubmissionServer
from engine.events import StepEvent
from engine.request import Request
from tests.support.listeners import SECRET
from tests.support.waiting import LIMIT_S

OTHER = b"o" * 32
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


def connected(address: str) -> socket.socket:
    return socket.create_connection(parse(address)[1], timeout=LIMIT_S)


def check_role(address: str, taken: queue.Queue[Channel], role: str) -> None:
    """A client that knows the secret is served next."""
    Channel.connect(address, SECRET, role).close()
    channel = taken.get(timeout=LIMIT_S)
    channel.close()
    assert channel.role == role


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
def test_a_client_without_the_certificate_of_the_secret_is_turned_away(
    address: str, taken: queue.Queue[Channel], context: Callable[[], ssl.SSLContext]
) -> None:
    with pytest.raises(OSError), context().wrap_socket(connected(address)) as peer:  # noqa: PT012
        peer.recv(NONCE)  # in TLS 1.3 the client is done before the server has checked its certificate
        pytest.fail("the server has sent a nonce")
    check_role(address, taken, "steps")


def test_a_secret_has_the_same_certificate_in_every_process(address: str) -> None:
    in_another = tls_context.__wrapped__(SECRET, False)  # not the cached one
    with in_another.wrap_socket(connected(address)) as peer:
        assert len(peer.recv(NONCE)) == NONCE


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"steps   " + b"p" * 48])
def test_an_unencrypted_peer_gets_an_alert_and_nothing_more(address: str, sent: bytes) -> None:
    with connected(address) as peer:
        peer.sendall(sent)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := peer.recv(100):
                got += piece
    assert got[:1] in (b"", bytes([ALERT]))
    assert len(got) < NONCE


async def test_a_client_sends_nothing_to_a_server_without_the_certificate_of_the_secret() -> None:
    heard: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1", common_name="spectra channel").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp:127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                with contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) as stream:
                    stream.sendall(b"n" * NONCE)
                    heard.append(stream.recv(100))

        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(UnauthenticatedError, match="does not know the secret"):
            await asyncio.to_thread(Channel.connect, address, SECRET, "steps")
        with pytest.raises(UnauthenticatedError, match="does not know the secret"):
            await AsyncChannel.connect(address, SECRET, "steps")
        serving.join()
    assert not any(heard)


async def idle(request: Request) -> AsyncGenerator[StepEvent, None]:
    for event in ():
        yield event


async def test_a_router_takes_submissions_of_other_nodes_over_tls_only() -> None:
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
