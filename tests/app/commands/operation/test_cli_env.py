"""``spectra env``: what nodes of a cluster have in their environment, as a shell and a pod read it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from app.cli import main
from app.serving.environment import NODE_GRPC_PORTS, NODE_HTTP_PORTS, node_environment, serve_environment

BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
WORKERS = range(10_002, 20_000)  # where Ray's workers listen unless `ray start` says otherwise
OUTGOING = range(32_768, 61_000)  # which Linux gives to outgoing connections by default


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["env", *flags]) == 0
    return capsys.readouterr().out


def test_a_shell_that_evaluates_it_has_the_environment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "a script's name"
    lines = printed(capsys, "--haproxy", str(script))
    done = subprocess.run(["sh", "-c", f"{lines}env -0"], env={"PATH": os.environ["PATH"]}, capture_output=True)
    seen = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert seen | node_environment(str(script)) == seen
    assert seen[BINARY] == str(script)


def test_a_pod_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    entries = yaml.safe_load(printed(capsys, "--format", "k8s"))
    assert {entry["name"]: entry["value"] for entry in entries} == node_environment()
    assert all(isinstance(entry["value"], str) for entry in entries)  # Kubernetes refuses numbers


def test_nodes_have_every_switch_of_a_single_server_but_what_is_that_machine_s() -> None:
    server, node = serve_environment("/scratch", 11_000), node_environment()
    of_the_machine = {name for name, value in server.items() if "/scratch" in value or name.endswith("_PORT")}
    kept = {name: value for name, value in server.items() if name not in of_the_machine | {BINARY}}
    assert kept == {name: value for name, value in node.items() if not name.endswith("_PORT") and name != BINARY}
    text = repr(node)
    assert "127.0.0.1" not in text
    assert "AUTH" not in text


def test_ranges_of_ports_are_wide_and_nothing_else_of_a_node_takes_them() -> None:
    http, grpc = (range(first, last + 1) for first, last in (NODE_HTTP_PORTS, NODE_GRPC_PORTS))
    taken = [8000, 8080, 8265, 6379, 10_001, 44_217, 44_227, 52_365]
    for ports in (http, grpc):
        assert len(ports) >= 3630  # a replica a second, for as long as a port that was given back is kept
        assert not any(set(ports) & set(others) for others in (WORKERS, OUTGOING, taken))
    assert not set(http) & set(grpc)


def test_the_script_can_be_written_and_starts_haproxy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BINARY, raising=False)
    script = tmp_path / "haproxy"
    assert f"{BINARY}={script}" in printed(capsys, "--haproxy", str(script), "--install-haproxy")
    pages = tmp_path / "haproxy.cfg"
    pages.write_text("frontend prometheus\n    bind :14381\nfrontend http_frontend\n    bind 0.0.0.0:8000\n")
    done = subprocess.run([script, "-f", pages, "-vv"], capture_output=True, text=True, timeout=240)
    assert "HAProxy version" in done.stdout
    assert pages.read_text().count("127.0.0.1") == 1  # its own pages; clients and other nodes reach the rest
    assert script.stat().st_mode & 0o777 == 0o755


def test_a_script_that_would_start_itself_or_lies_nowhere_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BINARY, str(tmp_path / "haproxy"))
    assert main(["env", "--haproxy", str(tmp_path / "haproxy"), "--install-haproxy"]) == 2
    assert "would start itself" in capsys.readouterr().err
    monkeypatch.delenv(BINARY)
    assert main(["env", "--haproxy", str(tmp_path / "absent" / "haproxy"), "--install-haproxy"]) == 2
    assert f"{tmp_path}/absent/haproxy: " in capsys.readouterr().err
