"""Scores texts in batches of similar length; a run that is killed can be resumed.

The lengths of the texts alone decide which of them form a batch. So a resumed run scores the same batches, its scores
are the same to the last bit, and no text is scored twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import Tokens
from retrieval_store.refine.selection import Numbers
from retrieval_store.refine.texts import FolderTexts

Scores = npt.NDArray[np.float64]
_SCORE = np.dtype("<f8")
_SYNC_EVERY = 32  # batches


Scorer = Callable[[Sequence[Tokens]], Scores]  # returns the perplexity of each text, ``[n]``, at least 1


class ScoreFile:
    """Scores in the order of a plan; each is permanent once it is appended.

    A score is never 0: zeros at the end are scores that a power failure erased.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._unsynced = 0

    def read(self, limit: int) -> Scores:
        """Return at most ``limit`` scores."""
        found = np.fromfile(self._path, _SCORE, count=min(limit, self._path.stat().st_size // _SCORE.itemsize))
        missing = np.flatnonzero(found < 1)
        return found[: missing[0]] if len(missing) else found

    def keep(self, n: int) -> None:
        """Remove all but the first ``n`` scores."""
        self._file.truncate(n * _SCORE.itemsize)

    def append(self, scores: Scores) -> None:
        self._file.write(scores.astype(_SCORE).tobytes())
        self._unsynced += 1
        if self._unsynced == _SYNC_EVERY:
            os.fsync(self._file.fileno())
            self._unsynced = 0

    def close(self) -> None:
        self._file.close()


def plan(lengths: npt.NDArray[np.integer], budget: int) -> tuple[Numbers, list[int]]:
    """Return batches of texts of similar length, the longest first: a batch that exceeds the memory fails at once.

    A batch has at most ``budget`` tokens, with all texts padded to its longest; a longer text is a batch of its own.

    Returns:
        Places in ``lengths`` in the order of scoring, ``[n]``; and where each batch begins in it, followed by ``n``.
    """
    order = np.argsort(-lengths.astype(np.int64), kind="stable")
    bounds = [0]
    while bounds[-1] < len(order):
        longest = int(lengths[order[bounds[-1]]])
        bounds.append(min(len(order), bounds[-1] + max(1, budget // max(1, longest))))
    return order, bounds


def score(
    texts: FolderTexts,
    candidates: Numbers,
    budget: int,
    file: ScoreFile,
    scorer: Callable[[], Scorer],
    progress: Callable[[int, bool], None] = lambda tokens, before: None,
) -> Scores:
    """Return the perplexities of ``candidates`` ``[n]``; those in ``file`` are not computed again.

    Args:
        texts: of the candidates.
        candidates: numbers of texts.
        budget: tokens of a batch.
        file: must be of the same texts, candidates, budget and scorer.
        scorer: returns the scorer; not called if no text is left to score.
        progress: called with a number of tokens scored, and whether an earlier run scored them.
    """
    lengths = texts.rows["length"][candidates]
    order, bounds = plan(lengths, budget)
    found, first = _resumed(order, bounds, file)
    progress(int(lengths[order[: bounds[first]]].sum(dtype=np.int64)), True)
    run = scorer() if first < len(bounds) - 1 else None
    for places in (order[begin:end] for begin, end in pairwise(bounds[first:])):
        assert run is not None
        found[places] = run([texts.tokens(int(candidates[place])) for place in places])
        file.append(found[places])
        progress(int(lengths[places].sum(dtype=np.int64)), False)
    return found


def _resumed(order: Numbers, bounds: Sequence[int], file: ScoreFile) -> tuple[Scores, int]:
    """Return the scores in the file, at their places, and the number of the first batch that it lacks."""
    done = file.read(len(order))
    first = int(np.searchsorted(bounds, len(done), side="right")) - 1
    n = bounds[first]
    file.keep(n)
    found = np.full(len(order), np.inf)
    found[order[:n]] = done[:n]
    return found, first
