"""What HAProxy does for clients, as our script runs it: a real one, before a server that keeps what it is sent."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.serving.haproxy import haproxy_script
from benchmarks.support.server_process import free_port

CONFIGURATION = """\
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend one
backend one
    server one 127.0.0.1:{behind}
"""
BODY = b"a body"
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n"


class Behind:
    """Answers one request."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard = b""
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            while not self.heard.endswith(BODY):
                self.heard += connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nwhole!")


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture
def port(behind: Behind, tmp_path: Path) -> Iterator[int]:
    """Where HAProxy listens."""
    chosen, path = free_port(), tmp_path / "haproxy.cfg"
    path.write_text(CONFIGURATION.format(port=chosen, behind=behind.port))
    [script] = haproxy_script(str(tmp_path), "127.0.0.1").values()
    with subprocess.Popen([script, "-db", "-f", path], stderr=subprocess.DEVNULL) as process:
        yield chosen
        process.kill()


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "HAProxy does not listen"
            time.sleep(0.05)


def test_a_client_that_waits_is_told_to_go_on_by_haproxy_and_gets_its_whole_answer(behind: Behind, port: int) -> None:
    with connected(port) as client:
        client.sendall(HEAD)
        told = b""
        while not told.endswith(b"\r\n\r\n"):
            told += client.recv(4096)
        assert told.startswith(b"HTTP/1.1 100 ")
        assert behind.heard == b""
        client.sendall(BODY)
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\nwhole!")
    assert b"expect" not in behind.heard.lower()
