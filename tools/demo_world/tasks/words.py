"""Sorting, reversing and re-casing a few words or numbers."""

from __future__ import annotations

from tools.demo_world.draw import Draw
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.code_names import VARIABLES
from tools.demo_world.fillers.people import CITIES, NAMES
from tools.demo_world.fillers.things import FOODS, OBJECTS, THINGS
from tools.demo_world.wordings import wordings

ASKED = wordings("words")
SORT_NUMBERS = ASKED["SORT_NUMBERS"]
SORT_WORDS = ASKED["SORT_WORDS"]
REVERSE = ASKED["REVERSE"]
EXTREME = ASKED["EXTREME"]
UPPER = ASKED["UPPER"]
REPEAT = ASKED["REPEAT"]
POSITIONS = ("first", "second", "third", "fourth", "fifth")
POSITION = ASKED["POSITION"]


def sort_numbers(draw: Draw) -> Example:
    """Three to six different ones, or the largest or smallest of them."""
    numbers = draw.sample(range(1, 100), draw.number(3, 6))
    items = ", ".join(map(str, numbers))
    if draw.chance(0.4):
        which = draw.one(("largest", "smallest"))
        found = max(numbers) if which == "largest" else min(numbers)
        return Example(
            "words", turn(draw.wording(EXTREME, items=items, which=which), f"The {which} number is {found}.")
        )
    return Example("words", turn(draw.wording(SORT_NUMBERS, items=items), ", ".join(map(str, sorted(numbers)))))


def sort_words(draw: Draw) -> Example:
    """Up to five with different first letters."""
    pool = draw.one((THINGS, NAMES, CITIES, FOODS))
    by_letter = {word[0]: word for word in draw.some(pool, 3 * draw.number(3, 5))}
    words = list(by_letter.values())[:5]
    return Example("words", turn(draw.wording(SORT_WORDS, items=", ".join(words)), ", ".join(sorted(words))))


def reverse(draw: Draw) -> Example:
    """The last one first."""
    words = draw.some(draw.one((THINGS, NAMES, CITIES)), draw.number(3, 5))
    return Example("words", turn(draw.wording(REVERSE, items=", ".join(words)), ", ".join(words[::-1])))


def upper(draw: Draw) -> Example:
    """One to three words of the lists."""
    words = draw.some(draw.one((THINGS, FOODS)), draw.number(1, 3))
    return Example("words", turn(draw.wording(UPPER, items=" ".join(words)), " ".join(words).upper()))


def repeat(draw: Draw) -> Example:
    """What is said, exactly: names and things in any order, which nothing but copying predicts."""
    words = [draw.pick(draw.one((THINGS, NAMES, OBJECTS, CITIES, VARIABLES))) for _ in range(draw.number(2, 24))]
    return Example("words", turn(draw.wording(REPEAT, items=" ".join(words)), " ".join(words)))


def position(draw: Draw) -> Example:
    """One of a list, by its place."""
    words = draw.some(draw.one((THINGS, NAMES, CITIES, FOODS)), draw.number(3, 5))
    i = draw.number(0, len(words) - 1)
    asked = draw.wording(POSITION, nth=POSITIONS[i], items=", ".join(words))
    return Example("words", turn(asked, f"The {POSITIONS[i]} is {words[i]}."))
