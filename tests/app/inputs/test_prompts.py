"""Prompt files and conversations."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from app.inputs.prompts import Conversation, Question, read_bodies, read_categories, read_questions
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
    [
        ("nonsense", "line 2"),
        ('{"turns": []}', "none of turns"),
        ('{"turns": "a"}', "line 2"),
        ("{}", "turns"),
        ('{"prompt": [1]}', "token ids"),
    ],
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
    conversation = Conversation(Question(["one", "two"]))
    assert conversation.ask() == [{"role": "user", "content": "one"}]
    conversation.answer("1")
    assert conversation.turn == 1
    assert [message["content"] for message in conversation.ask()] == ["one", "1", "two"]
    conversation.answer("2")
    assert conversation.is_over


MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_a_question_is_read_from_any_form(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(f'{{"prompt": "a", "question_id": 3}}\n{json.dumps({"messages": MESSAGES, "category": "x"})}\n')
    text, messages = read_questions(file)
    assert text == Question(["a"], 3)
    assert Conversation(messages).ask() == MESSAGES
    assert (messages.turns, messages.category, messages.text) == (["hi"], "x", "be brief\n\nhi")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([*MESSAGES, {"role": "assistant", "content": "hello"}], "end with role 'assistant'"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "with texts"),
    ],
)
def test_messages_that_cannot_be_asked_are_refused(tmp_path: Path, messages: object, says: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"messages": messages}))
    with pytest.raises(ConfigError, match=f"line 1 has .*{says}"):
        read_questions(file)


def test_questions_without_a_category_have_their_files_name(tmp_path: Path) -> None:
    file = tmp_path / "math.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b", "category": "x"}\n{"prompt": "c"}\n{"prompt": "d"}')
    found = read_categories([file], limit=3, per_category=1)
    assert [(question.text, question.category) for question in found] == [("a", "math"), ("b", "x")]


def test_sub_categories_are_categories_if_that_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    lines = ({"sub_category": "py"}, {"sub_category": "py"}, {"sub_category": "go"}, {}, {"category": None})
    file.write_text("\n".join(json.dumps({"prompt": "a", "category": "coding"} | line) for line in lines))
    finer = [question.category for question in read_categories([file], None, 1, finer=True)]
    assert finer == ["coding/py", "coding/go", "coding", "q"]
    assert [question.category for question in read_categories([file], None, 1)] == ["coding", "q"]


def parquet(path: Path, rows: str) -> Path:
    """A file of such rows."""
    with duckdb.connect() as session:
        session.execute(f"copy (select * from (values {rows}) v(question_id, category, turns, src)) to '{path}'")
    return path


def test_rows_of_a_parquet_file_are_questions(tmp_path: Path) -> None:
    path = parquet(tmp_path / "q.parquet", "('a1', 'coding', ['one', 'two'], {'x': 1}), (NULL, NULL, ['three'], NULL)")
    assert read_questions(path) == [Question(["one", "two"], "a1", "coding"), Question(["three"])]
    assert [question.category for question in read_categories([path], None, None)] == ["coding", "q"]
    assert read_bodies(path, "completions") == [{"prompt": "one"}, {"prompt": "three"}]


def test_a_wrong_parquet_file_is_named(tmp_path: Path) -> None:
    nothing = parquet(tmp_path / "nothing.parquet", "(1, 'qa', [], 2)")
    with pytest.raises(ConfigError, match=r"nothing\.parquet, row 1 has none of turns"):
        read_questions(nothing)
    other = parquet(tmp_path / "other.parquet", "(1, 'qa', 'no list', 2)")
    with pytest.raises(ConfigError, match=r"other\.parquet, row 1: Expected `array.*turns"):
        read_questions(other)
    (tmp_path / "damaged.parquet").write_text("no such format")
    for name in ("damaged", "absent"):
        with pytest.raises(ConfigError, match=rf"--prompts .*{name}\.parquet cannot be read"):
            read_questions(tmp_path / f"{name}.parquet")
