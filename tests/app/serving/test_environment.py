"""What a server needs of its machine, without a server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app.serving import environment
from app.serving.environment import check_port, claim_ports, folder_for_sockets, free_port, serve_environment
from engine.errors import ConfigError

PARENT = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); child.wait()"


@pytest.fixture
def haproxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The script Serve is given for HAProxy, around a program that writes its arguments down and sleeps."""
    stand_in = tmp_path / "stand-in"
    stand_in.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nexec sleep 60\n')
    stand_in.chmod(0o700)
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(stand_in))
    folder = tmp_path / "scratch"
    folder.mkdir()
    return serve_environment(str(folder), 11_000)["RAY_SERVE_HAPROXY_BINARY_PATH"]


def test_haproxy_does_not_splice_and_dies_with_its_parent_even_if_that_is_killed(haproxy: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, haproxy, "-f", "a file"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        deadline = time.monotonic() + 60
        while child.name() != "sleep" and time.monotonic() < deadline:
            time.sleep(0.01)
        family = [child, *child.children(recursive=True)]
        assert (tmp_path / "arguments").read_text() == "-dS -f a file\n"
        parent.kill()
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_haproxy_lives_through_a_term_signal_and_the_script_ends_with_it(haproxy: str) -> None:
    with subprocess.Popen([haproxy]) as child:
        deadline = time.monotonic() + 60
        while not (watchers := psutil.Process(child.pid).children()) and time.monotonic() < deadline:
            time.sleep(0.01)
        child.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.kill()
    assert psutil.wait_procs(watchers, timeout=10)[1] == []


def test_a_port_that_can_be_had_is_no_error() -> None:
    check_port("127.0.0.1", free_port())


def test_a_port_that_cannot_be_had_is_named_with_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"port \d+ on 127.0.0.1 is taken"):
            check_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="--port is 70000; it must be 1 to 65535"):
        check_port("127.0.0.1", 70000)
    with pytest.raises(ConfigError, match="--port is 0"):
        check_port("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="--host is 'no"):
        check_port("no.such.host.invalid", 8000)
    with pytest.raises(ConfigError, match="cannot be listened on"):
        check_port("192.0.2.1", 8000)  # an address of documentation, of no machine


def test_sockets_of_haproxy_fit_into_the_97_characters_it_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for temporary in ("/tmp", "/var/tmp", "/" + "x" * 60):
        monkeypatch.setattr("tempfile.tempdir", temporary)
        scratch = f"{folder_for_sockets()}/spectra-12345678"
        monkeypatch.setattr("tempfile.tempdir", None)
        name = os.path.basename(serve_environment(str(tmp_path), 11_000)["RAY_SERVE_HAPROXY_SOCKET_PATH"])
        assert len(f"{scratch}/{'0' * 56}/{name}") <= 97


def ports_of(claim: socket.socket) -> set[int]:
    """Every port that a server with this claim may listen on, but for its own HTTP port."""
    values = serve_environment("/scratch", claim.getsockname()[1])
    ports = {name: int(value) for name, value in values.items() if name.endswith("_PORT")}
    assert {"RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT"} <= ports.keys()
    taken = {port for name, port in ports.items() if "_MIN_" not in name and "_MAX_" not in name}
    for kind in ("HTTP", "GRPC"):
        first, last = (ports[f"RAY_SERVE_DIRECT_INGRESS_{end}_{kind}_PORT"] for end in ("MIN", "MAX"))
        taken |= set(range(first, last + 1))
    return taken


def test_servers_of_one_machine_share_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PORTS", (21_000, 21_600))  # three ranges
    claims = [claim_ports() for _ in range(3)]
    try:
        ranges = [ports_of(claim) | {claim.getsockname()[1]} for claim in claims]
        assert len(set.union(*ranges)) == sum(map(len, ranges))
        with pytest.raises(ConfigError, match="ports from 21000 to 21600"):
            claim_ports()
        claims.pop().close()
        claims.append(claim_ports())
    finally:
        for claim in claims:
            claim.close()
