"""The generator's command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.inputs.prompts import read_questions
from tools.demo_world.generate import main
from tools.demo_world.mix import conversation


def test_it_writes_what_training_sees(capsys: pytest.CaptureFixture[str]) -> None:
    main(["-n", "3", "--first", "7", "--seed", "2"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["messages"] for line in lines] == [list(conversation(2, i).messages) for i in (7, 8, 9)]


def test_it_writes_prompt_files(tmp_path: Path) -> None:
    main(["--split", "templates", "-n", "2", "--prompts", str(tmp_path / "prompts")])
    found = read_questions(tmp_path / "prompts" / "spec_bench.jsonl")
    assert {"code-edit", "text-edit", "extraction"} <= {question.category for question in found}
    assert all(question.turns[0] for question in found)
