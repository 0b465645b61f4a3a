"""Every benchmark imports, and those with a cheap form run in it."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from app.bench.replay import ReplayTarget
from app.cli import parser
from app.training.new_drafter import ArchitectureOptions, check_options, new_spec
from app.training.train import loss_settings
from benchmarks.__main__ import benchmark_files
from benchmarks.drafters import ablations, latency
from benchmarks.predictions import __main__ as predictions
from engine.model.loader import load_spec
from engine.sampling.params import SamplingParams

ROOT = Path(__file__).parents[2]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "benchmarks").rglob("*.py")]


def test_every_benchmark_imports() -> None:
    for module in MODULES:
        import_module(module)


def test_the_list_of_benchmarks_names_each_with_a_help_that_says_how_long_it_takes() -> None:
    files = dict(benchmark_files())
    assert {"benchmarks.acceptance", "benchmarks.step_time", "benchmarks.drafters.latency"} <= files.keys()
    for module, path in files.items():
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert "one JSON document" in " ".join(text.split()), module
        assert re.search(r"second|minute|hour", text), module


def test_an_equal_prediction_is_accepted_whole_and_a_useless_one_hardly() -> None:
    answer = list(range(100, 400))
    cases = [
        predictions.PredictionCase("equal", [1, 2, 3], answer, answer),
        predictions.PredictionCase("useless", [1, 2, 3], answer[::-1], answer),
    ]
    target = ReplayTarget(1000, 2000)
    labels = ("prediction", f"pld{predictions.PASTED}")
    params = SamplingParams(max_tokens=len(answer))
    (equal, useless), n_differing = predictions.measure_methods(cases, labels, target, lambda _: params)
    assert n_differing == 0
    assert equal["prediction"] > 30
    assert 5 < equal[labels[1]] <= 11
    assert useless["prediction"] < 1.1


def test_predicted_answers_of_a_model_change_no_text(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(tiny_checkpoint), "--parts", "answers", "--max-tokens", "8"]
    monkeypatch.setattr(sys, "argv", ["predictions", *flags])
    assert predictions.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["answers"]
    rows = {row["kind"]: row for row in found["tokens_per_forward"]}
    assert found["texts_that_differ"] == 0
    assert rows["equal"]["prediction"] > 5 > rows["useless"]["prediction"]


def test_every_drafter_of_the_latency_benchmark_drafts(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(tiny_checkpoint), "--repeats", "1", "--context", "20", "--batches", "2"]
    monkeypatch.setattr(sys, "argv", ["latency", *flags])
    assert latency.main() == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["method"] for row in rows] == list(latency.METHODS)


def test_the_flags_of_every_training_ablation_are_valid(tiny_checkpoint: Path) -> None:
    for flags in ablations.ROWS.values():
        arguments = parser().parse_args(["train", "--out", "out", *flags])
        asked = ArchitectureOptions(
            **{field.name: getattr(arguments, field.name) for field in fields(ArchitectureOptions)}
        )
        check_options(arguments.method, asked)
        spec = new_spec(arguments.method, asked, tiny_checkpoint, load_spec(tiny_checkpoint), None)
        assert loss_settings(arguments, spec).n_depths >= 1
