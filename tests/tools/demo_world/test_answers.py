"""What the generator calls right is right, by checks that know nothing of its templates."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tools.demo_world.draw import SPLITS, Draw, Split
from tools.demo_world.example import CALL, Example
from tools.demo_world.mix import SHARES, Maker
from tools.demo_world.tasks import arithmetic, code_edits, code_writing, extraction, reading, tables, tool_calls, words

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
CODE = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


def examples(maker: Maker, n: int = 40) -> list[Example]:
    """Examples of all splits."""
    draws = [Draw(random.Random(f"{maker.__name__}/{split}"), split) for split in SPLITS]
    return [maker(draw) for draw in draws for _ in range(n)]


@pytest.mark.parametrize("maker", SHARES, ids=lambda maker: f"{maker.__module__.split('.')[-1]}.{maker.__name__}")
def test_every_example_is_a_conversation_that_ends_with_its_answer(maker: Maker) -> None:
    for example in examples(maker):
        roles = [message["role"] for message in example.messages]
        assert roles[0] == "user"
        assert roles[-1] == "assistant"
        assert all(a != b for a, b in pairwise(roles))
        for message in example.messages:
            assert message["content"].strip() == message["content"] != ""
            assert not re.search(
                r"\{[a-z]\w*\}|\[[^\]\[\n]*\|[^\]\[\n]*\]", message["content"].replace('f"Hello, {name}!', "")
            )
        assert example.is_right(example.answer)


@pytest.mark.parametrize(
    "maker", [arithmetic.word_problem, arithmetic.plain_sum, arithmetic.drill, arithmetic.two_steps]
)
def test_every_step_of_a_sum_is_right(maker: Maker) -> None:
    for example in examples(maker):
        steps = EQUATION.findall(example.answer)
        assert steps
        for a, operator, b, c in steps:
            assert eval(f"{a} {operator} {b}") == int(c)


def test_a_sum_answers_the_numbers_that_are_asked() -> None:
    for example in examples(arithmetic.word_problem):
        asked = set(re.findall(r"\d+", example.messages[0]["content"]))
        a, _, b, c = EQUATION.findall(example.answer)[-1]
        assert {a, b} == asked
        assert re.findall(r"\d+", example.answer.split("\n")[-1])[-1] == c
        assert not example.is_right(example.answer.replace(c, str(int(c) + 1)))


def test_edited_functions_are_python_and_differ_in_what_was_asked() -> None:
    for example in examples(code_edits.edit, 100):
        after = CODE.findall(example.answer)[0]
        compile(after, "answer", "exec")
        renamed = re.search(
            r"(?:[Rr]ename|name) (?:the variable |this function to |`)?`?(\w+)`? to `?(\w+)",
            example.messages[0]["content"],
        )
        if renamed and renamed[1] not in ("function", "variable"):
            names = {node.id for node in ast.walk(ast.parse(after)) if isinstance(node, ast.Name)}
            assert renamed[1] not in names
            assert re.search(rf"\b{renamed[2]}\b", after)


CASES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "adds two numbers": ((2, 3), 5),
    "subtracts two numbers": ((7, 3), 4),
    "returns the larger of two numbers": ((7, 3), 7),
    "returns the smaller of two numbers": ((7, 3), 3),
    "sums a list": (([1, 2, 3],), 6),
    "finds the largest number in a list": (([1, 5, 3],), 5),
    "finds the smallest number in a list": (([4, 2, 3],), 2),
    "counts the vowels in a text": (("banana",), 3),
    "reverses a text": (("abc",), "cba"),
    "returns the average of a list": (([1, 2, 3],), 2),
    "keeps the even numbers of a list": (([1, 2, 4],), [2, 4]),
    "computes the factorial of a number": ((4,), 24),
    "counts the words in a text": (("a b c",), 3),
    "checks whether a number is even": ((4,), True),
    "checks whether a word is a palindrome": (("anna",), True),
}


def test_written_functions_do_what_is_asked() -> None:
    tried = set()
    for example in examples(code_writing.write, 150):
        does = next((d for d in CASES if d in example.messages[0]["content"]), None)
        space: dict[str, Callable[..., Any]] = {}
        exec(CODE.findall(example.answer)[0], space)
        (function,) = (value for name, value in space.items() if name != "__builtins__")
        if does is not None:
            arguments, wanted = CASES[does]
            assert function(*arguments) == wanted
            tried.add(does)
    assert tried == set(CASES)


@pytest.mark.parametrize("maker", [extraction.one_record, extraction.several_records])
def test_extracted_values_stand_in_the_text(maker: Maker) -> None:
    for example in examples(maker):
        found = json.loads(example.answer)
        for record in found if isinstance(found, list) else [found]:
            for key, value in record.items():
                assert key in example.messages[0]["content"]
                assert str(value) in example.messages[0]["content"]


@pytest.mark.parametrize("maker", [tool_calls.call, tool_calls.two_calls, tool_calls.invented])
def test_calls_fit_a_tool_that_is_offered(maker: Maker) -> None:
    for example in examples(maker):
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in example.tools}
        for body in CALL.findall(example.answer):
            called = json.loads(body)
            parameters = offered[called["name"]]
            assert list(called["arguments"]) == parameters["required"]
            for key, value in called["arguments"].items():
                assert isinstance(value, {"string": str, "integer": int}[parameters["properties"][key]["type"]])
                assert str(value) in example.messages[0]["content"]
        assert not example.is_right("No.")


def test_answers_about_a_text_name_what_is_in_it() -> None:
    for example in examples(reading.question):
        text = example.messages[0]["content"]
        names = [word for word in re.findall(r"\w+", example.answer) if word[0].isupper() and word != "Sunday"]
        assert all(name in text for name in names)


def test_tables_have_as_many_cells_in_every_row() -> None:
    for example in examples(tables.make):
        assert len({line.count("|") for line in example.answer.split("\n")}) == 1


def test_sorted_words_are_sorted() -> None:
    for example in examples(words.sort_words):
        assert example.answer.split(", ") == sorted(example.answer.split(", "))


@pytest.mark.parametrize("split", SPLITS)
def test_a_seed_gives_the_same_examples(split: Split) -> None:
    for maker in SHARES:
        first, second = (maker(Draw(random.Random(7), split)) for _ in range(2))
        assert first == second
