"""Rewriting a text: the answer is the whole text with one thing changed."""

from __future__ import annotations

import re
from collections.abc import Callable

from tools.demo_world.draw import Draw
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.code_names import VARIABLES
from tools.demo_world.fillers.people import CITIES, NAMES, PET_NAMES, WEEKDAYS
from tools.demo_world.fillers.things import ADJECTIVES, COLOURS, FOODS, OBJECTS, PLACES, THINGS
from tools.demo_world.wordings import wordings

SENTENCES = (
    "The {adjective} {object} stands [next to|behind|in front of] the {object2}.",
    "{x} went to the {place} on {day}.",
    "{x} bought {n} {things} at the {place}.",
    "The {place} opens at {n} [in the morning|on {day}].",
    "{x} painted the {object} {colour}.",
    "On {day} we had {food} for dinner.",
    "{x} lost a {colour} {object} near the {place}.",
    "My friend {x} comes from {city}.",
    "The train to {city} leaves at {n}.",
    "There are {n} {things} in the {colour} box.",
    "{x} and {y} met at the {place}.",
    "{x} sent a {adjective} {object} to {city}.",
    "The dog {pet} slept under the {object}.",
    "We need {n} {things} and a {object}.",
    "{y} thinks that the {object} is too {adjective}.",
    "It rained in {city} all {day}.",
    "Please bring the {things} to the {place}.",
    "The {food} at the {place} was very good.",
)
WRAPPED = ("{asked}\n\n{text}", "{asked}\n{text}", "{asked}: {text}", "{text}\n\n{asked}.")
UNSEEN_WRAPPED = ("Text: {text}\nTask: {asked}", "I have a text for you.\n\n{text}\n\nMy wish: {asked}.")
Change = Callable[[Draw, list[str]], tuple[str, str]]

ASKED = wordings("text_edits")
REPLACE = ASKED["REPLACE"]
DELETE = ASKED["DELETE"]
APPEND = ASKED["APPEND"]
PREPEND = ASKED["PREPEND"]
SPLIT_UP = ASKED["SPLIT_UP"]
CORRECT = ASKED["CORRECT"]
ARTICLE = re.compile(r"\b([Aa])(?= [aeiou])")
ORDINALS = ("first", "second", "third", "fourth", "fifth")


def babble(draw: Draw) -> str:
    """Words in any order: what nothing but copying predicts."""
    pools = (NAMES, OBJECTS, THINGS, CITIES, ADJECTIVES, VARIABLES)
    words = " ".join(draw.pick(draw.one(pools)) for _ in range(draw.number(3, 9)))
    return words[0].upper() + words[1:] + "."


def sentence(draw: Draw) -> str:
    """One plain sentence; one in six means nothing."""
    if draw.chance(1 / 6):
        return babble(draw)
    x, y = draw.some(NAMES, 2)
    first, second = draw.some(OBJECTS, 2)
    fillers = {
        "x": x,
        "y": y,
        "object": first,
        "object2": second,
        "place": draw.pick(PLACES),
        "things": draw.pick(THINGS),
        "n": draw.number(2, 20),
        "day": draw.one(WEEKDAYS),
        "colour": draw.pick(COLOURS),
        "food": draw.pick(FOODS),
        "city": draw.pick(CITIES),
        "adjective": draw.pick(ADJECTIVES),
        "pet": draw.pick(PET_NAMES),
    }
    return ARTICLE.sub(r"\1n", draw.phrase(SENTENCES, **fillers))


def replace(draw: Draw, text: list[str]) -> tuple[str, str]:
    """One word for another, wherever it stands."""
    words = sorted({w.strip(".,") for w in " ".join(text).split()} - {"The", "On", "It", "We", "My", "There", "Please"})
    long = [w for w in words if len(w) > 3 or w.isdigit()]
    old = draw.one(long)
    pool = NAMES if old[0].isupper() else draw.one((OBJECTS, THINGS, COLOURS, ADJECTIVES))
    new = str(draw.number(21, 60)) if old.isdigit() else draw.pick(pool)
    replaced = [" ".join(exchanged(word, old, new) for word in s.split()) for s in text]
    return draw.wording(REPLACE, old=old, new=new), " ".join(replaced)


def exchanged(word: str, old: str, new: str) -> str:
    """`word` with its stop, exchanged when it is `old`."""
    bare = word.rstrip(".,")
    return new + word[len(bare) :] if bare == old else word


def delete(draw: Draw, text: list[str]) -> tuple[str, str]:
    """All sentences but one."""
    i = draw.number(0, len(text) - 1)
    nth = "last" if i == len(text) - 1 and draw.chance(0.5) else ORDINALS[i]
    return draw.wording(DELETE, nth=nth), " ".join(text[:i] + text[i + 1 :])


def append(draw: Draw, text: list[str]) -> tuple[str, str]:
    """One sentence more, behind."""
    new = sentence(draw)
    return draw.wording(APPEND, new=new), " ".join([*text, new])


def prepend(draw: Draw, text: list[str]) -> tuple[str, str]:
    """One sentence more, in front."""
    new = sentence(draw)
    return draw.wording(PREPEND, new=new), " ".join([new, *text])


def split_up(draw: Draw, text: list[str]) -> tuple[str, str]:
    """One bullet a sentence."""
    return draw.wording(SPLIT_UP), "\n".join(f"- {s}" for s in text)


def edit(draw: Draw) -> Example:
    """A text and what to do with it."""
    text = [sentence(draw) for _ in range(draw.number(2, 5))]
    change: Change = draw.one((replace, replace, replace, delete, append, prepend, split_up))
    asked, answer = change(draw, text)
    wrapped = draw.phrase(UNSEEN_WRAPPED if draw.split == "templates" else WRAPPED, asked="{asked}", text="{text}")
    return Example("text edit", turn(wrapped.format(asked=asked, text=" ".join(text)), answer))


def spelling(draw: Draw) -> Example:
    """A text of which one word has two letters exchanged."""
    text = [sentence(draw) for _ in range(draw.number(1, 3))]
    words = " ".join(text).split(" ")
    known = {
        "went",
        "bought",
        "there",
        "near",
        "stands",
        "painted",
        "dinner",
        "friend",
        "comes",
        "train",
        "leaves",
        "slept",
        "under",
        "thinks",
        "rained",
        "bring",
        "very",
        "good",
        "behind",
        "opens",
        "morning",
        "front",
    }
    places = [i for i, w in enumerate(words) if w.strip(".").lower() in known]
    if not places:
        return spelling(draw)
    i = draw.one(places)
    k = draw.number(1, len(words[i].strip(".")) - 2)
    wrong = words[i][:k] + words[i][k + 1] + words[i][k] + words[i][k + 2 :]
    if wrong == words[i]:
        return spelling(draw)
    joint, mistaken = draw.one((": ", "\n", "\n\n")), " ".join([*words[:i], wrong, *words[i + 1 :]])
    return Example("text edit", turn(f"{draw.wording(CORRECT)}{joint}{mistaken}", " ".join(words)))
