"""Addresses of channels, and the options of their sockets."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from deployments.channels.tls import TlsStream

READ_AHEAD = 1 << 22  # bytes that an asyncio reader buffers
SEND_BUFFER = 1 << 22  # bytes the kernel should buffer for a busy peer; it may allow fewer
HANDSHAKE_S = 5.0  # seconds for a whole handshake
TCP = re.compile(
    r"tcp:(?:\[(?P<v6>[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%[\w.-]+)?)\]|(?P<host>[^:\[\]\s]+)):(?P<port>[0-9]{1,5})"
)
MAX_PORT = 65535
SILENT_S, PROBE_S, N_PROBES = 4, 2, 3  # of TCP keep-alive: a vanished peer is noticed after about 10 s


def tcp(host: str, port: int = 0) -> str:
    """``tcp:HOST:PORT`` of an IP address, of version 6 in brackets; port 0: any that is free."""
    return f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"


def parse(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """Socket family and address of ``unix:/path``, ``tcp:10.0.0.1:PORT`` or ``tcp:[fd00::1]:PORT``.

    Raises:
        ValueError: the address has none of these forms.
    """
    kind, _, rest = address.partition(":")
    if kind == "unix":
        return socket.AF_UNIX, rest
    found = TCP.fullmatch(address)
    if found is None or int(found["port"]) > MAX_PORT:
        raise ValueError(f"{address!r} is neither unix:/PATH nor tcp:HOST:PORT, an IPv6 host in brackets")
    if found["v6"] is not None:
        return socket.AF_INET6, (found["v6"], int(found["port"]))
    return socket.AF_INET, (found["host"], int(found["port"]))


def listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket and the address of it for peers, with the real port in place of a TCP port 0."""
    family, where = parse(address)
    if family == socket.AF_UNIX:
        Path(str(where)).unlink(missing_ok=True)
    server = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:  # IPv4 has an address of its own
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind(where)
    server.listen(8)
    if family == socket.AF_UNIX:
        os.chmod(str(where), 0o600)
        return server, address
    host, port = server.getsockname()[:2]
    return server, tcp(host, port)


def tune(connection: socket.socket | TlsStream) -> None:
    """Send small frames at once, use large buffers, and notice TCP peers whose node died without closing the socket."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, N_PROBES)
    # The kernel probes idle connections only; this timeout covers those with unacknowledged data.
    lost_after = 1000 * (SILENT_S + PROBE_S * N_PROBES)  # milliseconds
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, lost_after)


async def open_streams(address: str, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a listening peer, over TCP in TLS.

    Raises:
        OSError: no process listens there; as ``ssl.SSLError`` when the peer shows no trusted certificate.
    """
    family, where = parse(address)
    if family == socket.AF_UNIX:
        return await asyncio.open_unix_connection(str(where), limit=READ_AHEAD)
    assert tls is not None, "connections over TCP are encrypted"
    return await asyncio.open_connection(where[0], int(where[1]), limit=READ_AHEAD, ssl=tls)


async def serve_streams(
    server: socket.socket,
    accepted: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
    tls: ssl.SSLContext | None,
) -> asyncio.Server:
    """Accept connections at a socket of ``listen``; over TCP a peer must complete the TLS handshake in time."""
    if tls is None:
        return await asyncio.start_unix_server(accepted, sock=server, limit=READ_AHEAD)
    return await asyncio.start_server(
        accepted, sock=server, limit=READ_AHEAD, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S
    )
