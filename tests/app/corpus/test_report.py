"""Figures and histogram of a build, of corpora that are odd in some way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from app.corpus.figures import Choice, dropped, figures, quantiles, totals
from app.corpus.histogram import ROWS, _edges, _groups, draw
from app.corpus.inputs import Input
from app.corpus.report import table
from retrieval_store.refine.texts import ROW

NAN, INF = float("nan"), float("inf")


def choice(perplexities: list[float], kept: list[bool], sources: list[int] | None = None, **more: bool) -> Choice:
    rows = np.zeros(len(kept), ROW)
    rows["length"] = 10
    rows["hash"] = rows["document"] = np.arange(len(kept))
    rows["source"] = sources or 0
    none = np.zeros(len(kept), np.bool_)
    return Choice(rows, none, none, none, np.array(perplexities), np.array(kept), **more)


def inputs(n: int) -> list[Input]:
    return [Input(f"folder/in{i}.txt", Path(), "", 5) for i in range(n)]


@pytest.mark.parametrize(
    ("perplexities", "kept", "sources"),
    [
        ([3.0], [True], None),
        ([3.0, 3.0, 3.0], [True, True, False], None),
        ([2.0, 9.0, INF, NAN], [True, False, False, False], None),
        ([2.0, 1e9, 3.0], [True, True, True], None),
        ([1.0, 2.0, 50.0, 60.0], [True, True, False, False], [0, 0, 1, 1]),  # nothing kept of the second
        ([2.0 + i for i in range(30)], [i < 20 for i in range(30)], list(range(30))),
    ],
)
@pytest.mark.parametrize("is_per_input", [False, True])
def test_any_corpus_has_a_histogram(
    perplexities: list[float], kept: list[bool], sources: list[int] | None, is_per_input: bool, tmp_path: Path
) -> None:
    made = choice(perplexities, kept, sources, is_per_input=is_per_input)
    draw(made, inputs(max(sources or [0]) + 1), "a title", tmp_path / "p.png")
    height, width, _ = imread(tmp_path / "p.png").shape
    assert width > 900
    assert height > 250


def test_the_threshold_is_the_edge_of_a_bin() -> None:
    for low, high, threshold in ((1.5, 80.0, 7.3), (2.0, 9.0, 2.0), (2.0, 9.0, 9.0), (3.0, 3.0, 3.0001)):
        edges = _edges(low, high, threshold)
        assert (np.diff(edges) > 0).all()
        assert edges[0] <= low * 1.0000001
        assert edges[-1] >= high * 0.9999999
        assert min(abs(edges / threshold - 1)) < 1e-3


def test_further_inputs_share_the_last_row() -> None:
    made = choice([2.0] * 14, [True] * 14, list(range(14)))
    groups = _groups(made, inputs(14))
    assert len(groups) == ROWS
    assert groups[0][0] == "in0.txt"
    assert groups[-1][0] == "5 more inputs"
    assert sum(mine.sum() for _, mine in groups) == 14


def test_every_text_is_counted_once() -> None:
    rows = np.zeros(6, ROW)
    rows["length"] = [3, 3, 10, 10, 12, 20]
    rows["hash"] = [1, 1, 2, 2, 3, 4]
    rows["document"] = [0, 1, 2, 3, 3, 4]
    rows["source"] = [0, 0, 0, 0, 0, 1]
    is_short, is_repeated = dropped(rows, 8)
    assert is_short.tolist() == [True, True, False, False, False, False]
    assert is_repeated.tolist() == [False, False, False, True, False, False]  # short ones are no repetitions
    kept = np.array([False, False, False, False, True, True])
    none = np.zeros(6, np.bool_)
    made = Choice(rows, is_short, is_repeated, none, np.array([NAN, NAN, INF, NAN, 3.0, 5.0]), kept)
    first, second = figures(made, inputs(2))
    assert (first["documents"], first["texts"], first["tokens"], first["scored"], first["kept"]) == (4, 5, 38, 2, 1)
    assert first["perplexity"]["dropped"] is None  # only one that is infinite
    assert second["perplexity"]["kept"]["median"] == 5.0
    total = totals(made)
    assert (total["documents"], total["kept_tokens"], made.range) == (5, 32, (3.0, 5.0))
    assert made.kept.tolist() == [4, 5]
    lines = table([first, second]).splitlines()
    assert len({line.index(cell) + len(cell) for line, cell in zip(lines[1:], ("3.00", "5.00"), strict=True)}) == 1
    assert lines[1].endswith("-")


def test_quantiles_are_values_that_occur() -> None:
    found = quantiles(np.array([4.0, INF, 1.0, 2.0]))
    assert found == {"lowest": 1.0, "p10": 1.0, "median": 2.0, "p90": 4.0, "highest": 4.0}
    assert quantiles(np.array([INF])) is None
