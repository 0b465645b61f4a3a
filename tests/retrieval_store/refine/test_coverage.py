"""The choice of texts by coverage equals a greedy choice that computes every gain at every step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retrieval_store.refine.coverage import CONTEXT, covering
from retrieval_store.refine.selection import Budget
from retrieval_store.refine.texts import FolderTexts, TextWriter

POOLS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=8)


def chosen(
    pool: list[list[int]], budget: Budget, likelihoods: list[float] | None = None, order: list[int] | None = None
) -> list[int]:
    with TemporaryDirectory() as folder:
        writer = TextWriter(Path(folder))
        writer.add([np.array(text, np.int32) for text in pool], 0, "pool")
        writer.save(is_complete=True)
        writer.close()
        texts = FolderTexts(Path(folder))
        mine = np.array(list(range(len(pool))) if order is None else order, np.int64)
        found = covering(texts, mine, budget, None if likelihoods is None else np.array(likelihoods))
        texts.close()
    return found.tolist()


def literal(pool: list[list[int]], budget: int, likelihoods: list[float]) -> list[int]:
    contexts = [{tuple(text[i : i + CONTEXT]) for i in range(len(text) - CONTEXT + 1)} for text in pool]
    n_texts = Counter(context for some in contexts for context in some)
    weights: Counter[tuple[int, ...]] = Counter()
    for some, likelihood in zip(contexts, likelihoods, strict=True):
        for context in some:
            weights[context] += likelihood if n_texts[context] > 1 else 0.0  # type: ignore[assignment]
    taken: list[int] = []
    covered: set[tuple[int, ...]] = set()
    while True:
        fits = [i for i in range(len(pool)) if i not in taken and len(pool[i]) <= budget]
        if not fits:
            return taken
        gains = {i: sum(weights[context] for context in contexts[i] - covered) / len(pool[i]) for i in fits}
        best = max(fits, key=lambda i: (gains[i], -i))
        taken.append(best)
        covered |= contexts[best]
        budget -= len(pool[best])


@given(POOLS, st.integers(1, 60), st.booleans(), st.data())
def test_the_text_that_adds_most_per_token_comes_next(
    pool: list[list[int]], budget: int, is_weighted: bool, data: st.DataObject
) -> None:
    likelihoods = [1.0] * len(pool)
    if is_weighted:  # powers of two: their sums are exact, in whatever order
        likelihoods = [data.draw(st.sampled_from([1.0, 0.5, 0.25])) for _ in pool]
    found = chosen(pool, Budget(tokens=budget), likelihoods if is_weighted else None)
    assert found == literal(pool, budget, likelihoods)
