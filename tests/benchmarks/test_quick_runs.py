"""Every benchmark imports, and those with a cheap form run in it."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import pytest

from app.cli import parser
from app.training.new_drafter import ArchitectureOptions, check_options, new_spec
from app.training.train import loss_settings
from benchmarks.contiguity.load import SimulatedLoad
from benchmarks.drafters import ablations, latency
from benchmarks.plan_time import __main__ as plan_time
from engine.model.loader import load_spec
from engine.target_model.loading import describe_target
from engine.target_model.options import TargetOptions

ROOT = Path(__file__).parents[2]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "benchmarks").rglob("*.py")]


def test_every_benchmark_imports() -> None:
    for module in MODULES:
        import_module(module)


def test_planning_is_timed_for_every_kind_of_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["plan_time", "--runs", "1", "--context", "20"])
    plan_time.main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [(row["sequences"], row["nodes"]) for row in rows[::2]] == list(plan_time.STEPS)
    assert all(row["plan_ms"] > 0 and row["answer_ms"] > 0 and row["step_ms"] > 0 for row in rows)


@pytest.mark.parametrize("sharing", [False, True])
def test_blocks_stay_contiguous_in_a_cache_that_is_nearly_full(tiny_checkpoint: Path, sharing: bool) -> None:
    info = replace(describe_target(TargetOptions(str(tiny_checkpoint)), tiny_checkpoint), n_blocks=1024)
    load = SimulatedLoad(info, 0.85, sharing)
    load.warm_up(200)
    for _ in load.steps(100):
        load.scheduler.blocks.check_integrity()
    figures = load.counts.figures()
    assert figures["scattered"] is not None
    assert figures["scattered"] < 0.3  # 0.9 without moves


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
