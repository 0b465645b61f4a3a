"""``spectra env``: the environment of a cluster's nodes, as a shell and a pod read it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from app.commands.operation.env import WITHOUT_PROXY
from app.serving.environment import NODE_GRPC_PORTS, NODE_HTTP_PORTS, node_environment, serve_environment
from tests.support.spectra_command import run_cli

BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
WORKERS = range(10_002, 20_000)  # where Ray's workers listen unless `ray start` says otherwise
OUTGOING = range(32_768, 61_000)  # Linux takes these for outgoing connections by default


def test_a_shell_and_a_pod_read_the_same_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WITHOUT_PROXY:
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "a script's name"
    words = shlex.split(run_cli("env", "--haproxy", script).out)
    assert words[::2] == ["export"] * len(words[::2])
    assert dict(word.split("=", 1) for word in words[1::2]) == node_environment(str(script))
    assert node_environment(str(script))[BINARY] == str(script)
    entries = yaml.safe_load(run_cli("env", "--format", "k8s").out)
    assert {entry["name"]: entry["value"] for entry in entries} == node_environment()
    assert all(isinstance(entry["value"], str) for entry in entries)  # Kubernetes refuses numbers


def test_nodes_have_every_switch_of_a_single_server_that_is_not_of_one_machine() -> None:
    server, node = serve_environment("/scratch", 11_000), node_environment()
    of_the_machine = {name for name, value in server.items() if "/scratch" in value or name.endswith("_PORT")}
    kept = {name: value for name, value in server.items() if name not in of_the_machine | {BINARY}}
    assert kept == {name: value for name, value in node.items() if not name.endswith("_PORT") and name != BINARY}
    assert "127.0.0.1" not in repr(node)
    assert "AUTH" not in repr(node)


def test_port_ranges_are_wide_and_overlap_no_other_ports_of_a_node() -> None:
    http, grpc = (range(first, last + 1) for first, last in (NODE_HTTP_PORTS, NODE_GRPC_PORTS))
    taken = [8000, 8080, 8265, 6379, 10_001, 44_217, 44_227, 52_365]
    for ports in (http, grpc):
        assert len(ports) >= 3630  # a replica a second, while released ports stay reserved
        assert not any(set(ports) & set(others) for others in (WORKERS, OUTGOING, taken))
    assert not set(http) & set(grpc)


def test_only_lines_for_a_shell_set_the_calls_that_bypass_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WITHOUT_PROXY:
        monkeypatch.setenv(name, "10.1.2.3")
    assert [f"export {name}=10.1.2.3" in run_cli("env").out.splitlines() for name in WITHOUT_PROXY] == [True] * 3
    assert "10.1.2.3" not in run_cli("env", "--format", "k8s").out


@pytest.mark.cluster
def test_the_installed_script_starts_haproxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BINARY, raising=False)
    script = tmp_path / "haproxy"
    assert f"{BINARY}={script}" in run_cli("env", "--haproxy", script, "--install-haproxy").out
    pages = tmp_path / "haproxy.cfg"
    pages.write_text("frontend prometheus\n    bind :14381\nfrontend http_frontend\n    bind 0.0.0.0:8000\n")
    done = subprocess.run([script, "-f", pages, "-vv"], capture_output=True, text=True)
    assert "HAProxy version" in done.stdout
    assert pages.read_text().count("127.0.0.1") == 1  # only its statistics page becomes local
    assert script.stat().st_mode & 0o777 == 0o755


def test_a_script_that_would_start_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY, str(tmp_path / "haproxy"))
    ran = run_cli("env", "--haproxy", tmp_path / "haproxy", "--install-haproxy")
    assert (ran.status, "would start itself" in ran.err) == (2, True)
