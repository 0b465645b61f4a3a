"""Scores survive an interruption, and no text is scored twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from retrieval_store.index.index import Tokens
from retrieval_store.refine.scores import ScoreFile, Scores, plan, score
from retrieval_store.refine.texts import FolderTexts, TextWriter

LENGTHS = [5, 1, 9, 9, 2, 30, 7, 3, 3, 8]
BUDGET = 18


class StopError(Exception):
    pass


class MeanScorer:
    """Scores a text with 1 + the mean of its ids, and stops after some batches."""

    def __init__(self, batches: int = 99) -> None:
        self.left = batches
        self.seen: list[int] = []  # first id of each text, which is its number

    def __call__(self, texts: Sequence[Tokens], /) -> Scores:
        if not self.left:
            raise StopError
        self.left -= 1
        self.seen += [int(text[0]) for text in texts]
        return np.array([1 + text.mean() for text in texts])


@pytest.fixture
def texts(tmp_path: Path) -> Iterator[FolderTexts]:
    writer = TextWriter(tmp_path / "texts")
    for number, length in enumerate(LENGTHS):
        writer.add([np.full(length, number, np.int32)], 0, "")
    writer.save(is_complete=True)
    writer.close()
    found = FolderTexts(tmp_path / "texts")
    yield found
    found.close()


def scored(texts: FolderTexts, path: Path, scorer: MeanScorer, candidates: Sequence[int] = range(10)) -> Scores:
    file = ScoreFile(path)
    try:
        return score(texts, np.array(candidates), BUDGET, file, lambda: scorer)
    finally:
        file.close()


def test_batches_hold_texts_of_similar_length_within_the_budget() -> None:
    order, bounds = plan(np.array(LENGTHS), BUDGET)
    batches = [[LENGTHS[i] for i in order[a:b]] for a, b in pairwise(bounds)]
    assert batches == [[30], [9, 9], [8, 7], [5, 3, 3], [2, 1]]
    assert order.tolist() == [5, 2, 3, 9, 6, 0, 7, 8, 4, 1]
    assert plan(np.array([], np.int64), BUDGET)[1] == [0]


@pytest.mark.parametrize(
    ("batches", "torn"),  # half a score; what a lost machine leaves
    [(0, b""), (1, b"\0\0\0"), (2, b"\0" * 11), (4, b""), (5, b"\0\0\0")],
)
def test_a_run_resumes_where_another_died(texts: FolderTexts, tmp_path: Path, batches: int, torn: bytes) -> None:
    died, resumed, whole = MeanScorer(batches), MeanScorer(), MeanScorer()
    wanted = scored(texts, tmp_path / "whole", whole)
    if batches < 5:
        with pytest.raises(StopError):
            scored(texts, tmp_path / "s", died)
    else:
        scored(texts, tmp_path / "s", died)
    with (tmp_path / "s").open("ab") as file:
        file.write(torn)
    assert scored(texts, tmp_path / "s", resumed).tolist() == wanted.tolist()
    assert died.seen + resumed.seen == whole.seen
    assert (tmp_path / "s").read_bytes() == (tmp_path / "whole").read_bytes()


def test_half_a_batch_is_scored_again_and_only_candidates_are_scored(texts: FolderTexts, tmp_path: Path) -> None:
    scorer = MeanScorer()
    assert scored(texts, tmp_path / "some", scorer, [7, 2, 5]).tolist() == [8.0, 3.0, 6.0]
    assert scorer.seen == [5, 2, 7]
    wanted = scored(texts, tmp_path / "s", MeanScorer())
    with (tmp_path / "s").open("r+b") as file:
        file.truncate(8 * 4)  # texts in batches of 1, 2, 2, ..
    resumed = MeanScorer()
    assert scored(texts, tmp_path / "s", resumed).tolist() == wanted.tolist()
    assert resumed.seen == [9, 6, 0, 7, 8, 4, 1]
