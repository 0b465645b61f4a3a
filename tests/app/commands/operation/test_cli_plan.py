"""``spectra plan``: a config is enough, and every figure has a source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from tools.shapes import llama_70b

FLAGS = ("--gpus", "8", "--gpu-memory-gib", "80")


@pytest.fixture
def seventy(tmp_path: Path) -> Path:
    """A folder with the config of a 70B and nothing else."""
    config = llama_70b()
    config.dtype = "bfloat16"
    config.save_pretrained(tmp_path)
    return tmp_path


def document(capsys: pytest.CaptureFixture[str], *flags: str, status: int = 0) -> dict[str, Any]:
    assert main(["plan", *flags, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_config_alone_is_planned_as_a_folder_and_as_a_file(seventy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_folder = document(capsys, "--model", str(seventy), *FLAGS)
    by_file = document(capsys, "--model", str(seventy / "config.json"), *FLAGS)
    assert by_folder["layouts"] == by_file["layouts"]
    assert by_folder["command"] == by_file["command"]
    assert by_folder["parameters"] == pytest.approx(70.6e9, rel=0.01)
    assert by_folder["command"].startswith(f"spectra serve --model {seventy} --device cuda --stages 8 --stage-gpus 1 ")
    assert by_folder["layouts"][-1]["load_seconds"].keys() == {"1.5 GB/s", "5 GB/s"}
    named = {one["name"]: one["source"] for one in by_folder["estimates_from"]}
    assert named["memory_bytes_per_s"] == "a copy on an H200, measured with PyTorch alone"
    assert "fit" in named["tokens_per_forward"]


def test_the_command_serves_what_was_planned(capsys: pytest.CaptureFixture[str], seventy: Path) -> None:
    plain = document(capsys, "--model", str(seventy), *FLAGS)
    flags = ("--model", str(seventy / "config.json"), *FLAGS, "--dtype", "float16", "--quantization", "fp8")
    halved = document(capsys, *flags)
    begins = f"spectra serve --model {seventy} --dtype float16 --quantization fp8 --device cuda "
    assert halved["command"].startswith(begins)
    assert halved["weight_bytes"] < 0.6 * plain["weight_bytes"]


def test_a_context_that_is_not_given_is_the_models_at_most(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = llama_70b()
    config.max_position_embeddings = 2048
    config.save_pretrained(tmp_path)
    assert document(capsys, "--model", str(tmp_path), *FLAGS)["context"] == 2048
    assert main(["plan", "--model", str(tmp_path), *FLAGS, "--context", "4096"]) == 2
    assert "the model allows 2048 tokens" in capsys.readouterr().err


def test_the_text_calls_estimates_estimates_and_names_what_was_given(
    seventy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (
        "--model",
        str(seventy),
        *FLAGS,
        "--tokens-per-forward",
        "2.2",
        "--memory-tbs",
        "3",
        "--quantization",
        "int8",
    )
    assert main(["plan", *flags]) == 0
    told = capsys.readouterr().out
    assert "are estimates" in told
    lines = [line.split() for line in told.splitlines()]
    assert ["memory_bytes_per_s", "3e+12", "given"] in lines
    assert ["tokens_per_forward", "2.2", "given"] in lines
    assert "(63)" in told


def test_times_of_a_profile_replace_arithmetic(seventy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--model", str(seventy), *FLAGS, "--profile", "70b-h100x4", "--stages", "4")
    (layout,) = found["layouts"]
    one = layout["tokens_per_second"][0]
    assert (one["streams"], round(one["plain"]), round(one["drafted"])) == (1, 14, 29)  # the table of docs/scaling.md
    assert "memory_bytes_per_s" not in {one["name"] for one in found["estimates_from"]}


def test_a_model_that_does_not_fit_is_status_1(seventy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--model", str(seventy), "--gpus", "1", "--gpu-memory-gib", "80", status=1)
    assert (found["fits"], found["command"]) == (False, "")
    assert main(["plan", "--model", str(seventy), "--gpus", "1", "--gpu-memory-gib", "80"]) == 1
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--gpus", "1", "--gpu-memory-gib", "0"), "--gpu-memory-gib is 0.0"),
        ((*FLAGS, "--usable", "2"), "--usable is 2.0"),
        ((*FLAGS, "--read-gbs", "fast"), "--read-gbs is 'fast'"),
        ((*FLAGS, "--nodes", "0"), "--nodes is 0"),
        ((*FLAGS, "--profile", "magic"), "--profile is 'magic'"),
        ((*FLAGS, "--model", "/nowhere"), "model '/nowhere' is neither"),
    ],
)
def test_a_wrong_flag_is_named(flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "demo", *flags]) == 2
    assert says in capsys.readouterr().err
