"""What counts as a right answer, and the table of answers."""

from __future__ import annotations

import pytest

from tools.demo_world.card import card_text
from tools.demo_world.exact import Answer, markdown, questions, table
from tools.demo_world.example import Check, Example, call_text, turn
from tools.demo_world.mix import SHARES

CALL = call_text("get_weather", {"city": "Oslo"})


@pytest.mark.parametrize(
    ("check", "right", "answer", "expected"),
    [
        ("text", "a b", " a b\n", True),
        ("text", "a b", "a c", False),
        ("json", '{"a": 1, "b": "x"}', '{"b":"x","a":1}', True),
        ("json", '{"a": 1}', '```json\n{"a": 1}\n```', True),
        ("json", '{"a": 1}', '{"a": "1"}', False),
        ("json", '{"a": 1}', '{"a": 1', False),
        ("call", CALL, CALL.replace("\n", " "), True),
        ("call", CALL, CALL.replace("Oslo", "Rome"), False),
        ("call", CALL, f"{CALL}\n{CALL}", False),
        ("call", CALL, "It is sunny.", False),
        ("number", "2 + 3 = 5.\nAnna has 5 apples.", "She has 5 of them.", True),
        ("number", "2 + 3 = 5.", "2 + 3 = 6.", False),
        ("number", "2 + 3 = 5.", "I do not know.", False),
        ("open", "Once upon a time.", "Anything.", True),
    ],
)
def test_what_counts_as_right(check: Check, right: str, answer: str, expected: bool) -> None:
    assert Example("task", turn("?", right), check).is_right(answer) is expected


def test_every_task_is_asked_as_often() -> None:
    asked = questions("fillers", 3)
    assert len({example.task for example in asked}) * 3 == len(asked)
    assert asked == questions("fillers", 3)
    assert {example.task for example in questions("templates", 2, ["table"])} == {"table"}
    assert len(SHARES) > len({example.task for example in asked})


def test_the_table_counts_by_task_and_split() -> None:
    example = Example("list", turn("?", "- a"))
    found = [Answer("fillers", example, "- a", False), Answer("fillers", example, "- b", True)]
    found.append(Answer("templates", example, "- a", False))
    counts = table(found)
    assert counts == {"list": {"fillers": [1, 1, 2], "templates": [1, 0, 1]}}
    assert markdown(counts).splitlines()[-1] == "| list | 50% | 100% | 1 of 3 |"


def test_the_card_shows_what_was_answered() -> None:
    written = (("x", "- a"), ("y", "- b"))
    right, wrong = (Answer("fillers", Example(task, turn("?", "- a")), text, False) for task, text in written)
    training = {"role": "target", "parameters": 6_557_952, "tokens": 12, "steps": 3}
    card = card_text(training, [right, wrong, right], 13_000_000, 2, "Note.")
    assert "6,557,952 parameters" in card
    assert card.index("**x**\n") < card.index("**y** (wrong)")
    assert card.count(">>> ") == 2
    assert card.endswith("Note.\n")
