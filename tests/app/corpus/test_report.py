"""Figures and histogram of a build, also for corpora with few or infinite perplexities."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from app.corpus.inputs import CorpusInput
from app.corpus.report import count_inputs, count_texts, quantiles, table
from app.corpus.selection import TextSelection, find_flaws
from retrieval_store.refine.texts import ROW

NAN, INF = float("nan"), float("inf")


def choice(
    perplexities: list[float], kept: list[bool], sources: list[int] | None = None, **more: bool
) -> TextSelection:
    rows = np.zeros(len(kept), ROW)
    rows["length"] = 10
    rows["hash"] = rows["document"] = np.arange(len(kept))
    rows["source"] = sources or 0
    return TextSelection(rows, np.zeros(len(kept), np.uint8), np.array(perplexities), np.array(kept), **more)


def inputs(n: int) -> list[CorpusInput]:
    return [CorpusInput(f"folder/in{i}.txt", Path(), "", 5) for i in range(n)]


def test_every_text_is_counted_once() -> None:
    rows = np.zeros(6, ROW)
    rows["length"] = [3, 3, 10, 10, 12, 20]
    rows["hash"] = [1, 1, 2, 2, 3, 4]
    rows["document"] = [0, 1, 2, 3, 3, 4]
    rows["source"] = [0, 0, 0, 0, 0, 1]
    texts: Any = SimpleNamespace(rows=rows, tokens=lambda text: np.array([7]))
    assert find_flaws(texts, 8, 7).tolist() == [1, 1, 3, 2, 3, 3]
    flaws = find_flaws(texts, 8, 8)
    assert flaws.tolist() == [1, 1, 0, 2, 0, 0]  # short ones are no repetitions
    kept = np.array([False, False, False, False, True, True])
    made = TextSelection(rows, flaws, np.array([NAN, NAN, INF, NAN, 3.0, 5.0]), kept)
    first, second = count_inputs(made, inputs(2))
    assert (first["documents"], first["texts"], first["tokens"], first["scored"], first["kept"]) == (4, 5, 38, 2, 1)
    assert first["perplexity"]["dropped"] is None  # only one that is infinite
    assert second["perplexity"]["kept"]["median"] == 5.0
    total = count_texts(made, np.ones(6, np.bool_))
    assert (total["documents"], total["kept_tokens"], made.range) == (5, 32, (3.0, 5.0))
    assert made.kept.tolist() == [4, 5]
    lines = table([first, second]).splitlines()
    assert len({line.index(cell) + len(cell) for line, cell in zip(lines[1:], ("3.00", "5.00"), strict=True)}) == 1
    assert lines[1].endswith("-")
    found = quantiles(np.array([4.0, INF, 1.0, 2.0]))
    assert found == {"lowest": 1.0, "p10": 1.0, "median": 2.0, "p90": 4.0, "highest": 4.0}
    assert quantiles(np.array([INF])) is None
