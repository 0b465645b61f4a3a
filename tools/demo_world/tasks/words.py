"""Sorting, reversing and re-casing a few words or numbers."""

from __future__ import annotations

from tools.demo_world.draw import Draw, Wordings
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.code_names import VARIABLES
from tools.demo_world.fillers.people import CITIES, NAMES
from tools.demo_world.fillers.things import FOODS, OBJECTS, THINGS

SORT_NUMBERS = Wordings(
    (
        "[order|rank] {items}[, smallest first|, ascending].",
        "ascending order: {items}",
        "[please |]sort [these numbers|the numbers]: {items}",
        "[put|arrange] {items} in order[, smallest first|].",
        "sort {items} from small to large.",
    ),
    ("Order these from the smallest to the largest: {items}", "{items}. Sorted, please."),
)
SORT_WORDS = Wordings(
    (
        "[order|sort] {items} [alphabetically|by letter].",
        "A to Z, please: {items}",
        "[please |]sort [these words|the words] [alphabetically|by the alphabet]: {items}",
        "[put|arrange] {items} in alphabetical order.",
        "alphabetical order: {items}",
    ),
    ("Order from A to Z: {items}", "{items}. Alphabetically, please."),
)
REVERSE = Wordings(
    (
        "reversed, please: {items}",
        "[flip|invert] the order of {items}.",
        "[please |]reverse [this list|the list|the order]: {items}",
        "[write|give me] {items} in reverse order.",
        "[write|list] these backwards, last one first: {items}",
    ),
    ("Turn the order around: {items}", "{items}. The other way round, please."),
)
EXTREME = Wordings(
    (
        "the {which} number of {items} is?",
        "{which} of {items}?",
        "[which is|what is] the {which} of {items}?",
        "[find|tell me] the {which} number: {items}",
        "{items}: which one is the {which}?",
    ),
    ("Among {items}, name the {which}.", "The {which} of these, please: {items}"),
)
UPPER = Wordings(
    (
        "{items} in [capitals|capital letters|upper case], please",
        "[write|show] {items} [all |]in capitals",
        "[please |][write|put] {items} in [upper case|capital letters].",
        "[convert|change] {items} to [upper case|capitals].",
        "upper case: {items}",
    ),
    ("I want {items} in capitals only.", "Shout: {items}"),
)
REPEAT = Wordings(
    (
        "[write|type|print] [this|exactly this|the following]: {items}",
        '"{items}" - [repeat|say] that[, please|].',
        "[please |]copy this text: {items}",
        '[please |][say|repeat|write] "{items}"[ once|][.|]',
        "[repeat|say] after me: {items}",
        "[copy|echo]: {items}",
    ),
    ("Give back exactly this: {items}", "Your answer should be: {items}"),
)
POSITIONS = ("first", "second", "third", "fourth", "fifth")
POSITION = Wordings(
    (
        "the {nth} of {items} is?",
        "[find|tell me] the {nth} [item|word]: {items}",
        "what is the {nth} [word|item] of {items}?",
        "[name|give me] the {nth} of these: {items}",
        "{items}: which one is {nth}?",
    ),
    ("Which one stands at the {nth} place? {items}", "Pick the {nth} from {items}."),
)


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
