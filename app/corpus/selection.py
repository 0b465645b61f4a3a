"""Chooses the texts of a snapshot: neither short, repeated nor outside the vocabulary, and of those the best."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from app.corpus.settings import COVER
from retrieval_store.refine.coverage import covering
from retrieval_store.refine.selection import (
    Bools,
    Budget,
    Numbers,
    Pick,
    first,
    first_of_each,
    likeliest,
    repeated,
    shuffled,
    too_short,
)
from retrieval_store.refine.texts import FolderTexts, Rows

FLAWS = ("too_short", "repeated", "outside_vocabulary")  # the last: the model lacks one of the text's tokens
Perplexities = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextSelection:
    """Which texts are kept, and why the others are not."""

    rows: Rows  # [n], all texts
    flaws: npt.NDArray[np.uint8]  # [n], as ``find_flaws`` returns them
    perplexities: Perplexities | None  # [n], NaN where nothing was scored; None: unrefined
    is_kept: Bools  # [n]
    is_per_input: bool = False  # every input has its own threshold
    has_threshold: bool = True  # the likeliest texts are kept

    @property
    def kept(self) -> Numbers:
        """Numbers of the kept texts, in the order of reading."""
        return np.flatnonzero(self.is_kept)

    @property
    def range(self) -> tuple[float, float] | None:
        """Lowest and highest perplexity of the kept texts."""
        if self.perplexities is None:
            return None
        found = self.perplexities[self.is_kept]
        return float(found.min()), float(found.max())

    def threshold(self, mine: Bools) -> float | None:
        """The highest kept perplexity for texts ``mine`` ``[n]`` of one input; None if there is no threshold."""
        assert self.perplexities is not None, "an unrefined corpus has no perplexities"
        kept = self.perplexities[self.is_kept & mine if self.is_per_input else self.is_kept]
        return float(kept.max()) if len(kept) and self.has_threshold else None


def find_flaws(texts: FolderTexts, shortest: int, vocab_size: int) -> npt.NDArray[np.uint8]:
    """Why each text is no candidate, ``[n]``: 1 and the index in ``FLAWS`` of its first flaw; 0: it is one."""
    flaws = too_short(texts.rows, shortest).astype(np.uint8)
    longer = np.flatnonzero(flaws == 0)
    flaws[longer[repeated(texts.rows[longer])]] = 2
    for text in np.flatnonzero(flaws == 0):
        if texts.tokens(int(text)).max(initial=0) >= vocab_size:
            flaws[text] = 3
    return flaws


def choose_texts(
    texts: FolderTexts, candidates: Numbers, perplexities: Perplexities | None, arguments: argparse.Namespace
) -> Numbers:
    """The texts to keep: the first of an order or those that cover most, as many as the budget holds.

    Args:
        candidates: numbers of texts ``[m]``.
        perplexities: ``[n]``, of all texts; None: unrefined.
    """
    if perplexities is None:
        order = shuffled(candidates, arguments.seed)
    else:
        order = likeliest(candidates, perplexities[candidates])

    def cover(mine: Numbers, budget: Budget) -> Numbers:
        return covering(texts, mine, budget, None if perplexities is None else 1.0 / perplexities[mine])

    pick: Pick = cover if arguments.select == COVER else partial(first, texts.rows)
    budget = Budget(arguments.keep, arguments.keep_tokens)
    return first_of_each(texts.rows, order, budget, pick) if arguments.per_input else pick(order, budget)
