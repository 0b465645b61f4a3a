"""Every row is a training that can be begun, and a finished one is not done again."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from app.cli import parser
from app.training.losses import check_terms
from app.training.running.architecture import Asked, check_asked, new_spec
from app.training.running.train import loss_settings
from benchmarks.drafters import ablations
from engine.model.loader import load_spec
from tests.support.tiny_models import saved_checkpoint
from tests.support.training_runs import write_prompts


@pytest.mark.parametrize("name", ablations.ROWS)
def test_a_rows_flags_are_right(name: str) -> None:
    arguments = parser().parse_args(["train", "--out", "out", *ablations.ROWS[name]])
    asked = Asked(**{field.name: getattr(arguments, field.name) for field in fields(Asked)})
    check_asked(arguments.method, asked)
    path = saved_checkpoint()
    spec = new_spec(arguments.method, asked, path, load_spec(path), ())
    check_terms(spec, loss_settings(arguments, spec))


@pytest.mark.parametrize(("flag", "amount"), [("--minutes", "0.5"), ("--steps", "40")])
def test_rows_are_trained_once_on_answers_that_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str, amount: str
) -> None:
    commands: list[list[str]] = []
    units = ("minutes", "steps")

    def train(command: list[str], **_: object) -> None:
        commands.append(command)
        out = Path(command[command.index("--out") + 1])
        out.mkdir(parents=True)
        kind = {"by_depth": [0.5, 0.5], "tau": 1.75}
        given = {unit: command[command.index(f"--{unit}") + 1 :][:1] for unit in units if f"--{unit}" in command}
        training = {"steps": 3, "budget": {unit: float(*given[unit]) if unit in given else None for unit in units}}
        document = {"method": command[command.index("--method") + 1], "training": training}
        (out / "training.json").write_text(json.dumps({**document, "held_out": {"greedy": kind, "sampled": kind}}))

    monkeypatch.setattr(ablations.subprocess, "run", train)
    flags = ["--target", "T", "--prompts", str(write_prompts(tmp_path)), "--corpus", "C", flag, amount]
    rows = ["--rows", "eagle 1,parallelspec on eagle,its texts by others", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["ablations", *flags, *rows])
    for _ in range(2):
        assert ablations.main() == 0
        out = capsys.readouterr().out
        assert [line.split("|")[1].strip() for line in out.splitlines()[2:5]] == rows[1].split(",")
        assert "| eagle 1               |      2 |        2 |" in out
        assert "| parallelspec on eagle |      2 |        1 |" in out
    assert len(commands) == 4
    assert all(command[command.index(flag) + 1] == amount for command in commands[1:])
    assert "--prompts" in commands[0]
    answers = str(tmp_path / "out" / "answers" / "work" / "answers.jsonl")
    assert [command[-2:] for command in commands[1:3]] == [["--answers", answers]] * 2
    assert commands[3][-4:] == ["--answers", "C", "--measured-on", answers]
