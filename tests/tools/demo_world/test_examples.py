"""Examples of the demo model's world are right, by checks that do not use the generator's templates."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise

from tools.demo_world.draw import SPLITS, Draw
from tools.demo_world.example import Example
from tools.demo_world.mix import SHARES, Maker
from tools.demo_world.tasks import arithmetic, extraction

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
PLACEHOLDER = re.compile(r"\{[a-z]\w*\}|\[[^\]\[\n]*\|[^\]\[\n]*\]")


def examples(maker: Maker, n: int = 15) -> list[Example]:
    """Return ``n`` examples of every split."""
    draws = [Draw(random.Random(f"{maker.__name__}/{split}"), split) for split in SPLITS]
    return [maker(draw) for draw in draws for _ in range(n)]


def test_every_example_is_a_conversation_that_ends_with_its_answer() -> None:
    for maker in SHARES:
        for example in examples(maker, 5):
            roles = [message["role"] for message in example.messages]
            assert (roles[0], roles[-1]) == ("user", "assistant")
            assert all(a != b for a, b in pairwise(roles))
            for message in example.messages:
                assert message["content"].strip() == message["content"] != ""
                assert not PLACEHOLDER.search(message["content"].replace('f"Hello, {name}!', ""))
            assert example.is_right(example.answer)
        assert examples(maker, 1) == examples(maker, 1)


def test_sums_are_right() -> None:
    for maker in (arithmetic.word_problem, arithmetic.plain_sum, arithmetic.drill, arithmetic.two_steps):
        for example in examples(maker):
            steps = EQUATION.findall(example.answer)
            assert steps
            for a, operator, b, c in steps:
                assert eval(f"{a} {operator} {b}") == int(c)


def test_extracted_values_are_in_the_text() -> None:
    for maker in (extraction.one_record, extraction.several_records):
        for example in examples(maker):
            found = json.loads(example.answer)
            for record in found if isinstance(found, list) else [found]:
                for key, value in record.items():
                    assert key in example.messages[0]["content"]
                    assert str(value) in example.messages[0]["content"]
