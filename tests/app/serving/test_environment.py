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
from app.serving.environment import (
    check_port,
    claim_ports,
    folder_for_sockets,
    local_environment,
    serve_environment,
)
from app.serving.haproxy import haproxy_script
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


CONFIGURATION = """\
frontend prometheus
    bind :14381
frontend http_frontend
    bind 127.0.0.1:8000
    # a comment on bind 127.0.0.1:8000
frontend grpc_frontend
    bind 0.0.0.0:9000 proto h2
listen stats
  bind *:14382
"""  # the lines of Serve's that the script looks at


def configuration(folder: Path, text: str = CONFIGURATION) -> str:
    path = folder / "a file"
    path.write_text(text)
    return str(path)


def completed(folder: Path, text: str, bundle: Path | None, host: str = "0.0.0.0") -> tuple[int, str]:
    """Exit status of the script around a program that ends at once, and the configuration that program would see."""
    path = configuration(folder, text)
    script = haproxy_script(str(folder), host, bundle)["RAY_SERVE_HAPROXY_BINARY_PATH"]
    done = subprocess.run([script, "-db", "-f", path], timeout=240, stderr=subprocess.DEVNULL)
    return done.returncode, Path(path).read_text()


@pytest.mark.parametrize(("host", "bound"), [("::1", "[::1]"), ("::", "[::]"), ("fd77::10", "[fd77::10]")])
def test_an_ipv6_interface_is_bound_in_brackets(
    host: str, bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/bin/true")
    for bundle, ending in ((None, "\n"), (tmp_path / "b.pem", " ssl crt ")):
        status, text = completed(tmp_path, CONFIGURATION, bundle, host)
        assert status == 0
        assert f"    bind {bound}:8000{ending}" in text
        assert text.count(bound) == 1


def test_pages_of_haproxy_are_for_this_machine_and_https_is_added_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/bin/true")
    status, plain = completed(tmp_path, CONFIGURATION, None)
    assert status == 0
    own = CONFIGURATION.replace("bind :", "bind 127.0.0.1:").replace("bind *:", "bind 127.0.0.1:")
    rule = "    http-request wait-for-body time 60s at-least 1 if { req.fhdr(expect) -m found }"
    assert plain == own.replace("    bind 127.0.0.1:8000", f"{rule}\n    bind 0.0.0.0:8000")
    status, secured = completed(tmp_path, CONFIGURATION, tmp_path / "b.pem")
    assert status == 0
    line = f"    bind 0.0.0.0:8000 ssl crt {tmp_path}/b.pem alpn h2,http/1.1 ssl-min-ver TLSv1.2 "
    assert line in secured
    assert secured.count(" ssl ") == 1
    assert completed(tmp_path, secured, tmp_path / "b.pem") == (0, secured)  # as after a reload


@pytest.mark.parametrize("text", ["", CONFIGURATION.replace("http_frontend", "renamed"), "frontend http_frontend\n"])
def test_haproxy_does_not_start_in_clear_where_https_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/bin/true")
    assert completed(tmp_path, text, tmp_path / "b.pem")[0] == 1


def test_haproxy_does_not_splice_and_dies_with_its_parent_even_if_that_is_killed(haproxy: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, haproxy, "-f", configuration(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        deadline = time.monotonic() + 240
        while child.name() != "sleep" and time.monotonic() < deadline:
            time.sleep(0.01)
        family = [child, *child.children(recursive=True)]
        assert (tmp_path / "arguments").read_text() == f"-dS -f {tmp_path}/a file\n"
        parent.kill()
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_haproxy_lives_through_a_term_signal_and_the_script_ends_with_it(haproxy: str, tmp_path: Path) -> None:
    with subprocess.Popen([haproxy, "-f", configuration(tmp_path)]) as child:
        deadline = time.monotonic() + 240
        while not (watchers := psutil.Process(child.pid).children()) and time.monotonic() < deadline:
            time.sleep(0.01)
        child.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.kill()
    assert psutil.wait_procs(watchers, timeout=10)[1] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_can_be_had_is_no_error_and_one_that_is_taken_is_named(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        taken.bind((host, 0))
        port = taken.getsockname()[1]
        taken.listen()
        with pytest.raises(ConfigError, match=rf"port {port} on {host} is taken"):
            check_port(host, port)
    check_port(host, port)


def test_a_port_that_cannot_be_had_is_named_with_the_reason() -> None:
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


def test_a_ray_of_its_own_asks_every_caller_for_a_token_of_this_server_alone() -> None:
    one, other = local_environment(), local_environment()
    assert one["RAY_AUTH_MODE"] == "token"
    assert len(one["RAY_AUTH_TOKEN"]) == 64
    assert one["RAY_AUTH_TOKEN"] != other["RAY_AUTH_TOKEN"]
    assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & serve_environment("/scratch", 11_000).keys()  # a joined cluster's
