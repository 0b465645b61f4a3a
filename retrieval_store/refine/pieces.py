"""Cuts the tokens of a document into pieces of bounded length. Knows token ids and which of them end a line."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import Tokens

SLACK = 4  # a piece may end a quarter of its length early


def cut(tokens: Tokens, longest: int, ends_line: npt.NDArray[np.bool_]) -> Iterator[Tokens]:
    """Pieces of at most ``longest`` tokens; together they are the document.

    A piece ends behind the last end of a line in its last quarter, so that code and prose are cut where their authors
    paused; without one it is as long as it may be.

    Args:
        tokens: int32 ``[t]``.
        longest: tokens of a piece.
        ends_line: ``[vocab]``, which tokens end with a line feed.
    """
    first = 0
    while len(tokens) - first > longest:
        window = tokens[first : first + longest]
        early = longest - longest // SLACK
        ends = np.flatnonzero(ends_line[window[early:]])
        size = early + int(ends[-1]) + 1 if len(ends) else longest
        yield window[:size]
        first += size
    yield tokens[first:]
