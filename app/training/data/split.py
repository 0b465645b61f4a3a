"""What is trained on and what is held out: by source question, without loops, and without what both would share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.training.data.examples import Example
from engine.errors import ConfigError

NGRAM = 13  # a text that shares so many tokens in a row with a held-out one is not trained on (arXiv 2005.14165)
LEAST = 4  # tokens that a text must have the target write


@dataclass(frozen=True, slots=True)
class Split:
    """Texts, and what became of those that are not among them."""

    train: list[Example]
    held_out: list[Example]
    loops: int  # texts that were cut where they begin to repeat themselves
    too_short: int  # left out: fewer than ``LEAST`` written tokens, loops cut off and within the longest length
    shared: int  # left out of training: they share an n-gram with a held-out text


def split(examples: Iterable[Example], share: float, longest: int, measured: Iterable[Example] = ()) -> Split:
    """Hold out the texts of about ``share`` of all source questions.

    A source is held out for what it hashes to, so that more questions move none from one side to the other.

    Args:
        share: above 0, below 1.
        longest: tokens of a text; the rest is cut off.
        measured: texts that are never trained on; if there are any, only they are held out.

    Raises:
        ConfigError: nothing is left on one side.
    """
    whole, apart = list(examples), list(measured)
    cut, cut_apart = ([one.before_loop() for one in some] for some in (whole, apart))
    kept, kept_apart = ([one for one in (e.cut(longest) for e in some) if _counts(one)] for some in (cut, cut_apart))
    held = _held_out({example.source for example in (*kept, *kept_apart)}, share)
    held_out = [example for example in (kept_apart if apart else kept) if example.source in held]
    others = [example for example in kept if example.source not in held]
    known = {gram for example in held_out for gram in _grams(example.written)}
    train = [example for example in others if known.isdisjoint(_grams(example.written))]
    short, alike = len(whole) + len(apart) - len(kept) - len(kept_apart), len(others) - len(train)
    if not train or not held_out:
        raise ConfigError(
            f"of {len(whole) + len(apart)} texts {len(train)} are left to train on and {len(held_out)} are held out "
            f"(too short: {short}, too alike: {alike}): more questions are needed"
        )
    loops = sum(one is not other for one, other in zip((*whole, *apart), (*cut, *cut_apart), strict=True))
    return Split(train, held_out, loops, short, alike)


def _counts(example: Example) -> bool:
    return len(example.written) >= LEAST


def _held_out(sources: set[str], share: float) -> set[str]:
    ranked = sorted(sources, key=_place)
    return {source for source in ranked if _place(source) < share} or set(ranked[: len(ranked) // 2][:1])


def _place(source: str) -> float:
    """Where in 0 to 1 a source's hash lies."""
    return int(source[:8], 16) / 2**32


def _grams(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1)}
