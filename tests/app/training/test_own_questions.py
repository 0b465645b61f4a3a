"""``--own-questions``: the target writes questions after its chat template, each once, and answers the ended ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.inputs.prompts import encode_chat
from app.training import answering
from app.training.answering import beginning_of_turn
from engine.loop import Engine
from tests.support.spectra_command import CliRun, run_cli
from tests.support.tiny_models import saved_checkpoint, tiny_tokenizer


def run_train(folder: Path, n: int, target: Path | None = None, out: str = "out") -> CliRun:
    where = ("--target", target or saved_checkpoint(), "--work", folder / "work", "--out", folder / out)
    sizes = ("--max-tokens", 8, "--max-length", 160, "--batch", 4, "--roots", 4, "--measured", 2, "--steps", 1)
    return run_cli("train", "--method", "medusa", "--own-questions", n, *where, *sizes)


def lines_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "work" / name).read_text().splitlines()[1:]]


def test_questions_are_written_once_and_ended_ones_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_train(tmp_path, 8)
    assert first.status == 0, first.err
    written = lines_of(tmp_path, "questions.jsonl")
    assert first.document["texts"]["own_questions"] == len({line["prompt"] for line in written if line["prompt"]}) < 8
    assert sorted(line["number"] for line in written) == list(range(8))
    with monkeypatch.context() as patch:
        patch.delattr(Engine, "step")  # nothing is left to write
        assert run_train(tmp_path, 8).document["texts"] == first.document["texts"]
    assert run_train(tmp_path, 12, out="other").status == 0
    more = lines_of(tmp_path, "questions.jsonl")
    assert more[:8] == written
    assert sorted(line["number"] for line in more[8:]) == list(range(8, 12))
    questions = [line["prompt"] for line in more if line["prompt"]]
    assert 2 < len(questions) < 12  # the target did not end the others
    tokenizer = tiny_tokenizer()
    prompts = [encode_chat(tokenizer, [{"role": "user", "content": question}]) for question in questions]
    assert sorted(line["prompt"] for line in lines_of(tmp_path, "answers.jsonl")) == sorted(prompts)
    assert tokenizer.convert_ids_to_tokens(beginning_of_turn(tokenizer)) == ["<|bos|>", "<|user|>"]


def test_a_target_that_ends_no_question_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "MAX_QUESTION_TOKENS", 1)
    run = run_train(tmp_path, 3)
    assert run.status == 2
    assert "the target ended none of 3 questions within 1 tokens; use --prompts" in run.err


def test_a_target_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    target = shutil.copytree(saved_checkpoint(), tmp_path / "target")
    (target / "chat_template.jinja").unlink()
    run = run_train(tmp_path, 2, target)
    assert run.status == 2
    assert "--own-questions needs a chat template, which the target lacks; use --prompts" in run.err
