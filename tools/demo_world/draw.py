"""Seeded choices that respect what is held out: fillers, wordings, pairs of numbers.

A *filler* is a word that is put into a template; a *wording* is a template of what the user says. Both have a side:
training sees one, evaluation asks with the other.
"""

from __future__ import annotations

import hashlib
import keyword
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Split = Literal["train", "fillers", "templates"]  # what of an example training has not seen: nothing, fillers, wording
SPLITS: tuple[Split, ...] = ("train", "fillers", "templates")
HELD_OUT = SPLITS[1:]
HELD_OUT_ONE_IN = 8
LEAST_HELD_OUT = 4  # of a list
LEAST_SPLICED = 8  # words of a list
SPLICED = 0.5  # share of what is made up
MOST_LETTERS = 14  # of a word that is made up
FEW = 0.4  # share of training examples with as few fillers of a kind as the held-out side has
OPTIONS = re.compile(r"\[([^\[\]]*)\]")
T = TypeVar("T")


def held_out(key: str) -> bool:
    """True for about one key in eight, by hash, so that no list has to be kept."""
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def words_of(text: str) -> list[str]:
    """The words of a list that is written as text."""
    return text.split()


def spliced(rng: random.Random, words: Sequence[str]) -> str:
    """The beginning of one word and the end of another, such as "notaroons" of "notebooks" and "macaroons"."""
    first, second = rng.choice(words), rng.choice(words)
    head, tail = first[: rng.randint(2, max(len(first), 2))], second[rng.randint(0, max(len(second) - 2, 0)) :]
    return (head + tail)[:MOST_LETTERS]


@dataclass(frozen=True)
class Pool:
    """Fillers of one kind: a list, and others that are made up, so that copying is learnt and not a list.

    Half of those are `spliced` from two words of the list, held-out ones too: their pieces are those that words have
    which were never seen, where an invented word is made of the same few syllables.

    Args:
        words: the list.
        invent: makes a word, held out or not; without it all that is made up is spliced.
        invented: share of draws that are made up.
    """

    words: Sequence[str]
    invent: Callable[[random.Random], str] | None = None
    invented: float = 0.0
    sides: tuple[list[str], list[str]] = field(init=False, repr=False)  # seen, held out

    def __post_init__(self) -> None:
        by_hash = sorted(set(self.words), key=lambda word: hashlib.sha256(word.encode()).digest())
        n_unseen = min(max(len(by_hash) // HELD_OUT_ONE_IN, LEAST_HELD_OUT), len(by_hash) // 2)
        object.__setattr__(self, "sides", (by_hash[n_unseen:], by_hash[:n_unseen]))

    def side(self, unseen: bool, part: int | None = None) -> list[str]:
        """The words of a side, or one of the parts into which it falls: each as large as the held-out side."""
        words = self.sides[unseen]
        if part is None or not self.sides[1]:
            return words
        parts = max(len(words) // len(self.sides[1]), 1)
        return words[part % parts :: parts]

    def draw(self, rng: random.Random, unseen: bool, part: int | None = None) -> str:
        """One filler of the wanted side."""
        words = self.side(unseen, part)
        if words and rng.random() >= self.invented:
            return rng.choice(words)
        while True:
            if self.invent is None or (len(self.words) > LEAST_SPLICED and rng.random() < SPLICED):
                word = spliced(rng, self.words)
            else:
                word = self.invent(rng)
            if held_out(word) == unseen and word not in self.words and not keyword.iskeyword(word):
                return word


@dataclass(frozen=True)
class Wordings:
    """Ways to say a thing; `[a|b|]` inside one is a choice, `{name}` is filled in. `unseen` are never trained on."""

    seen: Sequence[str]
    unseen: Sequence[str]


class Draw:
    """Draws for the examples of one split, in one seeded order.

    With `few`, fillers come from a part of every pool that is as small as what is held out of it: the same words then
    stand in a text several times, and copying has to look further back than one word to know where it is.
    """

    def __init__(self, rng: random.Random, split: Split, few: bool = False) -> None:
        self.rng, self.split = rng, split
        self.part = rng.randrange(HELD_OUT_ONE_IN) if few else None

    def pick(self, pool: Pool) -> str:
        """A filler."""
        return pool.draw(self.rng, self.split == "fillers", self.part)

    def some(self, pool: Pool, n: int) -> list[str]:
        """`n` different fillers, or all that a small pool holds out."""
        found: list[str] = []
        if not pool.invented:
            n = min(n, len(pool.side(self.split == "fillers", self.part)))
        while len(found) < n:
            word = self.pick(pool)
            if word not in found:
                found.append(word)
        return found

    def wording(self, wordings: Wordings, **fillers: object) -> str:
        """One of the split's wordings, its options chosen, `fillers` filled in."""
        template = self.rng.choice(wordings.unseen if self.split == "templates" else wordings.seen)
        return self.expand(template).format(**fillers)

    def phrase(self, options: Sequence[str], **fillers: object) -> str:
        """One of `options`, of which none is held out, filled in."""
        return self.expand(self.rng.choice(options)).format(**fillers)

    def expand(self, template: str) -> str:
        """`template` with every `[a|b|c]` replaced by one of its options; the innermost come first."""
        while OPTIONS.search(template):
            template = OPTIONS.sub(lambda m: self.rng.choice(m.group(1).split("|")), template)
        return template[:1].upper() + template[1:]

    def one(self, options: Sequence[T]) -> T:
        """Any of `options`."""
        return self.rng.choice(options)

    def sample(self, options: Sequence[T], n: int) -> list[T]:
        """`n` different ones of `options`, in any order."""
        return self.rng.sample(options, n)

    def chance(self, share: float) -> bool:
        """True in `share` of all calls."""
        return self.rng.random() < share

    def number(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return self.rng.randint(low, high)

    def pair(self, kind: str, draw: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        """A pair of numbers on the split's side: `kind` names the operation that it is held out from."""
        while True:
            a, b = draw()
            if held_out(f"{a}{kind}{b}") == (self.split == "fillers"):
                return a, b
