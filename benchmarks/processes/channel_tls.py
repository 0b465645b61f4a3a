"""What TLS costs on the channels between nodes: a message there and its echo back, over loopback, two processes.

    python -m benchmarks.processes.channel_tls

Unix sockets, TCP in clear and TCP in TLS take turns in one run; the table shows medians in microseconds and the ratio
of TLS to clear. A step sends some hundreds of bytes and gets as many; with sockets between stages, the hidden states
of a row take 8 to 16 KiB. Half a minute; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Callable

from app.reporting.report import as_line
from deployments.channels.addresses import HANDSHAKE_S
from deployments.channels.channel import Channel
from deployments.channels.tls import secured

SECRET = b"s" * 32
SIZES = {200: 2000, 16 << 10: 1000, 1 << 20: 60, 32 << 20: 6}  # bytes -> messages of a round
ROUNDS = 5
KINDS = ("unix", "tcp", "tcp, TLS")


def channel(connection: socket.socket, kind: str, is_server: bool) -> Channel:
    """The blocking half over this connection; of TCP, in TLS or not."""
    if kind != "tcp, TLS":
        return Channel(connection, "steps")
    stream = secured(connection, SECRET, is_server, time.monotonic() + HANDSHAKE_S)
    stream.settimeout(None)
    return Channel(stream, "steps")


def pair(kind: str) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets."""
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


def echo(connection: socket.socket, kind: str) -> None:
    """Send every message back until the peer closes."""
    peer = channel(connection, kind, True)
    try:
        while True:
            peer.send(peer.receive())
    except (EOFError, OSError):
        peer.close()


def median_of(ask: Callable[[], object], n: int) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(n):
        began = time.perf_counter()
        ask()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> int:
    """Print the table; returns the exit status."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    fork = multiprocessing.get_context("fork")
    peers: dict[str, Channel] = {}
    for kind in KINDS:
        ours, theirs = pair(kind)
        fork.Process(target=echo, args=(theirs, kind), daemon=True).start()
        theirs.close()
        peers[kind] = channel(ours, kind, False)
    print(f"{'bytes':>10}" + "".join(f"{kind:>12}" for kind in KINDS) + "   TLS / clear")
    found_at: dict[str, dict[str, float]] = {}
    for size, n in SIZES.items():
        payload = bytes(size)

        def ask(peer: Channel, payload: bytes = payload) -> None:
            peer.send(payload)
            peer.receive()

        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(ROUNDS):
            for kind, peer in peers.items():
                times[kind].append(median_of(lambda peer=peer: ask(peer), n))  # type: ignore[misc]
        best = {kind: min(found) * 1e6 for kind, found in times.items()}
        found_at[str(size)] = best
        row = "".join(f"{best[kind]:12.0f}" for kind in KINDS)
        print(f"{size:>10}{row}   {best['tcp, TLS'] / best['tcp']:.2f}")
    print(as_line({"microseconds": found_at}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
