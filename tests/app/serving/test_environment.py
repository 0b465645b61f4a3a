"""What a server needs of its machine: its port, ports for replicas, sockets, and a token for its own Ray."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from app.inputs.devices import check_cache
from app.serving import environment
from app.serving.environment import (
    check_port,
    claim_ports,
    folder_for_sockets,
    local_environment,
    serve_environment,
)
from benchmarks.support.server_process import free_port
from engine.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_is_accepted_and_one_in_use_is_named(host: str) -> None:
    port = free_port()
    check_port(host, port)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        taken.bind((host, port))
        taken.listen()
        with pytest.raises(ConfigError, match=rf"port {port} on {host} is taken"):
            check_port(host, port)


@pytest.mark.parametrize(
    ("host", "port", "says"),
    [
        ("127.0.0.1", 70000, "--port is 70000; it must be 1 to 65535"),
        ("127.0.0.1", 0, "--port is 0"),
        ("no.such.host.invalid", 8000, "--host is 'no"),
        ("192.0.2.1", 8000, "cannot be listened on"),  # an address for documentation, which no machine has
    ],
)
def test_an_impossible_port_is_named_with_the_reason(host: str, port: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_port(host, port)


def test_sockets_of_haproxy_fit_into_the_97_characters_that_it_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for temporary in ("/tmp", "/var/tmp", "/" + "x" * 60):
        monkeypatch.setattr("tempfile.tempdir", temporary)
        scratch = f"{folder_for_sockets()}/spectra-12345678"
        monkeypatch.setattr("tempfile.tempdir", None)
        name = os.path.basename(serve_environment(str(tmp_path), 11_000)["RAY_SERVE_HAPROXY_SOCKET_PATH"])
        assert len(f"{scratch}/{'0' * 56}/{name}") <= 97


def test_a_cache_is_compared_with_the_memory_of_a_device_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    check_cache("auto", "cpu")
    check_cache(0.001, "cpu")
    check_cache(0.001, "cuda")  # where there is no GPU, this refuses nothing
    monkeypatch.setattr("app.inputs.devices.memory_bytes", lambda _: 2 << 30)
    for device, where in (("cpu", "this machine"), ("cuda", "this machine's GPUs")):
        with pytest.raises(ConfigError, match=rf"--kv-gib is 2.5; it must be at most 2.0, .* memory of {where}$"):
            check_cache(2.5, device)


def test_a_temporary_folder_too_long_for_sockets_is_named_where_tmp_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 94)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"TMPDIR is /x+; it may have 21 characters unless"):
        folder_for_sockets()


def ports_of(claim: socket.socket) -> set[int]:
    """Return every port on which a server with this claim may listen, except its own HTTP port."""
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
        with pytest.raises(ConfigError, match="ports 21000 to 21600"):
            claim_ports()
        claims.pop().close()
        claims.append(claim_ports())
    finally:
        for claim in claims:
            claim.close()


def test_every_server_has_its_own_token_for_its_own_ray() -> None:
    one, other = local_environment(), local_environment()
    assert one["RAY_AUTH_MODE"] == "token"
    assert len(one["RAY_AUTH_TOKEN"]) == 64
    assert one["RAY_AUTH_TOKEN"] != other["RAY_AUTH_TOKEN"]
    assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & serve_environment("/scratch", 11_000).keys()  # a joined cluster's
