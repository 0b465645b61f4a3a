"""Prompt files and conversations."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from app.inputs.prompts import Conversation, Question, read_bodies, read_categories, read_questions
from engine.errors import ConfigError

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_a_question_is_read_from_every_form(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    lines = [
        {"question_id": 1, "category": "qa", "turns": ["a", "b"], "reference": []},
        {"turns": ["a\u2028b\u0085c"]},  # of all line ends only a newline ends a line
        {"prompt": "a", "question_id": 3},
        {"messages": MESSAGES, "category": "x"},
    ]
    file.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n", encoding="utf-8")
    first, second, text, messages = read_questions(file)
    assert first == Question(["a", "b"], 1, "qa")
    assert second.turns == ["a\u2028b\u0085c"]
    assert text == Question(["a"], 3)
    assert Conversation(messages).ask() == MESSAGES
    assert (messages.turns, messages.category, messages.text) == (["hi"], "x", "be brief\n\nhi")
    assert read_questions(file, limit=1) == [first]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"nonsense", "q.jsonl, line 3"),
        (b'{"turns": []}', "line 3 has none of turns"),
        (b'{"turns": "a"}', "line 3"),
        (b"{}", "turns"),
        (b'{"prompt": [1]}', "token ids"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (json.dumps({"messages": [*MESSAGES, {"role": "assistant", "content": "a"}]}).encode(), "end with role 'assis"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}', "line 3 has .*with texts"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: bytes, says: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes(b'{"turns": ["fine"]}\n\n' + line)
    with pytest.raises(ConfigError, match=says):
        read_questions(file)


def test_a_conversation_shows_the_model_its_own_answers() -> None:
    conversation = Conversation(Question(["one", "two"]))
    assert conversation.ask() == [{"role": "user", "content": "one"}]
    conversation.answer("1")
    assert conversation.turn == 1
    assert [message["content"] for message in conversation.ask()] == ["one", "1", "two"]
    conversation.answer("2")
    assert conversation.is_over


def test_categories_are_those_of_the_lines_or_the_name_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "math.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b", "category": "x"}\n{"prompt": "c"}\n{"prompt": "d"}')
    found = read_categories([file], limit=3, per_category=1)
    assert [(question.text, question.category) for question in found] == [("a", "math"), ("b", "x")]
    lines = ({"sub_category": "py"}, {"sub_category": "py"}, {"sub_category": "go"}, {}, {"category": None})
    file.write_text("\n".join(json.dumps({"prompt": "a", "category": "coding"} | line) for line in lines))
    finer = [question.category for question in read_categories([file], None, 1, finer=True)]
    assert finer == ["coding/py", "coding/go", "coding", "math"]
    assert [question.category for question in read_categories([file], None, 1)] == ["coding", "math"]


def parquet(path: Path, rows: str) -> Path:
    with duckdb.connect() as session:
        session.execute(f"copy (select * from (values {rows}) v(question_id, category, turns, src)) to '{path}'")
    return path


def test_rows_of_a_parquet_file_are_questions(tmp_path: Path) -> None:
    path = parquet(tmp_path / "q.parquet", "('a1', 'coding', ['one', 'two'], {'x': 1}), (NULL, NULL, ['three'], NULL)")
    assert read_questions(path) == [Question(["one", "two"], "a1", "coding"), Question(["three"])]
    assert [question.category for question in read_categories([path], None, None)] == ["coding", "q"]
    assert read_bodies(path, "completions") == [{"prompt": "one"}, {"prompt": "three"}]
    parquet(tmp_path / "nothing.parquet", "(1, 'qa', [], 2)")
    parquet(tmp_path / "other.parquet", "(1, 'qa', 'no list', 2)")
    (tmp_path / "damaged.parquet").write_text("no such format")
    for name, says in (
        ("nothing", r"nothing\.parquet, row 1 has none of turns"),
        ("other", r"other\.parquet, row 1: .*turns"),
        ("damaged", r"--prompts .*damaged\.parquet cannot be read"),
        ("absent", r"--prompts .*absent\.parquet cannot be read"),
    ):
        with pytest.raises(ConfigError, match=says):
            read_questions(tmp_path / f"{name}.parquet")
