"""Prompt files and conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.inputs.prompts import Conversation, Question, read_questions
from engine.errors import ConfigError


def test_questions_are_read_line_by_line_and_unknown_keys_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"question_id": 1, "category": "qa", "turns": ["a", "b"], "reference": []}\n\n{"turns": ["c"]}\n')
    first, second = read_questions(file)
    assert first == Question(["a", "b"], 1, "qa")
    assert second.turns == ["c"]
    assert read_questions(file, limit=1) == [first]


@pytest.mark.parametrize(
    ("line", "message"),
    [("nonsense", "line 2"), ('{"turns": []}', "turns is empty"), ('{"turns": "a"}', "line 2"), ("{}", "turns")],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"turns": ["fine"]}\n' + line)
    with pytest.raises(ConfigError, match=message):
        read_questions(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.jsonl"):
        read_questions(tmp_path / "absent.jsonl")


def test_a_conversation_shows_the_model_its_own_answers() -> None:
    conversation = Conversation(Question(["one", "two"]), [])
    assert conversation.ask() == [{"role": "user", "content": "one"}]
    conversation.answer("1")
    assert conversation.turn == 1
    assert [message["content"] for message in conversation.ask()] == ["one", "1", "two"]
    conversation.answer("2")
    assert conversation.is_over
