"""The script that starts HAProxy: it completes Serve's configuration, and HAProxy lives as long as its server."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app.serving.haproxy import haproxy_script
from benchmarks.support.server_process import free_port
from tests.support.waiting import LIMIT_S, wait_until

PROXY = """\
defaults
    mode http
    timeout connect 60s
    timeout client 600s
    timeout server 600s
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend one
backend one
    server one 127.0.0.1:{origin}
"""
OF_SERVE = """\
frontend prometheus
    bind :14381
frontend http_frontend
    bind 127.0.0.1:8000
    # a comment on bind 127.0.0.1:8000
frontend grpc_frontend
    bind 0.0.0.0:9000 proto h2
listen stats
  bind *:14382
"""  # the lines that the script looks at
BODY = b"a body"
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n"
PARENT = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); child.wait()"


def connect(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
    except ConnectionRefusedError:
        return None


@pytest.mark.cluster
def test_haproxy_answers_100_continue_itself_and_the_client_gets_the_whole_answer(tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "haproxy.cfg"
    [script] = haproxy_script(str(tmp_path), "127.0.0.1").values()
    with socket.create_server(("127.0.0.1", 0)) as origin:
        origin.settimeout(LIMIT_S)
        path.write_text(PROXY.format(port=port, origin=origin.getsockname()[1]))
        with subprocess.Popen([script, "-db", "-f", path], stderr=subprocess.DEVNULL) as process:
            try:
                with wait_until(lambda: connect(port), "HAProxy does not listen") as client:
                    client.sendall(HEAD)
                    assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
                    client.sendall(BODY)
                    with origin.accept()[0] as connection:
                        received = read_until(connection, BODY)
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nwhole!")
                    answer = read_until(client, b"whole!")
            finally:
                process.kill()
    assert b"expect" not in received.lower()
    assert answer.startswith(b"HTTP/1.1 200 ")


def read_until(peer: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        part = peer.recv(4096)
        assert part, data
        data += part
    return data


Complete = Callable[..., tuple[int, str]]


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Returns exit status and configuration after the script, which runs ``/bin/true`` as HAProxy."""
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/bin/true")

    def run(text: str, bundle: Path | None, host: str = "0.0.0.0") -> tuple[int, str]:
        path = tmp_path / "a file"
        path.write_text(text)
        script = haproxy_script(str(tmp_path), host, bundle)["RAY_SERVE_HAPROXY_BINARY_PATH"]
        done = subprocess.run([script, "-db", "-f", str(path)], stderr=subprocess.DEVNULL)
        return done.returncode, path.read_text()

    return run


@pytest.mark.matrix
def test_https_is_added_once_and_pages_of_haproxy_are_bound_to_loopback(complete: Complete, tmp_path: Path) -> None:
    bundle = tmp_path / "b.pem"
    rule = "    http-request wait-for-body time 60s at-least 1 if { req.fhdr(expect) -m found }"
    own = OF_SERVE.replace("bind :", "bind 127.0.0.1:").replace("bind *:", "bind 127.0.0.1:")
    plain = own.replace("    bind 127.0.0.1:8000", f"{rule}\n    bind 0.0.0.0:8000")
    assert complete(OF_SERVE, None) == (0, plain)
    status, secured = complete(OF_SERVE, bundle)
    assert status == 0
    assert f"    bind 0.0.0.0:8000 ssl crt {bundle} alpn h2,http/1.1 ssl-min-ver TLSv1.2 " in secured
    assert secured.count(" ssl ") == 1
    assert complete(secured, bundle) == (0, secured)  # as after a reload
    for host, bound in (("::1", "[::1]"), ("::", "[::]"), ("fd77::10", "[fd77::10]")):
        status, text = complete(OF_SERVE, bundle, host)
        assert status == 0
        assert text.count(bound) == text.count(f"    bind {bound}:8000 ssl crt ") == 1


@pytest.mark.matrix
@pytest.mark.parametrize("text", ["", OF_SERVE.replace("http_frontend", "renamed"), "frontend http_frontend\n"])
def test_haproxy_never_serves_unencrypted_where_https_is_configured(
    complete: Complete, tmp_path: Path, text: str
) -> None:
    assert complete(text, tmp_path / "b.pem")[0] == 1


@pytest.mark.matrix
def test_haproxy_ignores_sigterm_and_ends_with_its_parent_even_after_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in, config = tmp_path / "stand-in", tmp_path / "a file"
    stand_in.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nexec sleep 6000\n')
    stand_in.chmod(0o700)
    config.write_text(OF_SERVE)
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(stand_in))
    script = haproxy_script(str(tmp_path), "0.0.0.0")["RAY_SERVE_HAPROXY_BINARY_PATH"]
    command = [sys.executable, "-c", PARENT, script, "-f", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        wait_until(lambda: child.name() == "sleep")
        assert (tmp_path / "arguments").read_text() == f"-dS -f {config}\n"  # without splicing
        status = Path(f"/proc/{child.pid}/status").read_text()
        (ignored,) = re.findall(r"^SigIgn:\s*(\w+)$", status, re.MULTILINE)
        assert int(ignored, 16) & 1 << signal.SIGTERM - 1
        family = [child, *child.children(recursive=True)]
        parent.kill()
    assert psutil.wait_procs(family, timeout=LIMIT_S)[1] == []
