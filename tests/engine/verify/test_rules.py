"""Numerical corners of the rejection rule: no crash, nothing impossible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.tree import ROOT, TokenTree
from engine.verify.rules import Row, decide_rejection
from tests.support.enumeration import VOCAB


class Always:
    """Rejects whatever can be rejected, draws the last possible token."""

    def accept(self, probability: float) -> bool:
        return probability >= 1.0

    def draw(self, weights: Row) -> int:
        assert np.isfinite(weights).all()
        assert weights.sum() > 0.0
        return int(np.flatnonzero(weights)[-1])


@pytest.mark.parametrize(
    "p", [[1.0, 0.0, 0.0], [1e-300, 1.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [7.0, 0, 1.0]]
)
@pytest.mark.parametrize("q", [None, [1.0, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1.0], [1e-30, 1.0, 0]])
def test_corners_neither_crash_nor_emit_the_impossible(p: list[float], q: list[float] | None) -> None:
    row = np.array(p)
    for tokens in itertools.product(range(VOCAB), repeat=3):
        rows = None if q is None else np.tile(np.array(q, dtype=np.float32), (3, 1))
        tree = TokenTree(tokens, [ROOT] * 3, q=rows)
        child, token = decide_rejection(row, tree, ROOT, Always())
        assert row[token] > 0.0
        assert child is None or tree.tokens[child] == token


def test_equal_distributions_that_differ_by_rounding_still_yield_a_token() -> None:
    p = np.array([0.1, 0.2, 0.7])
    tree = TokenTree([2], [ROOT], q=p[None].astype(np.float32))

    class Never(Always):
        def accept(self, probability: float) -> bool:
            return False

    assert decide_rejection(p, tree, ROOT, Never())[0] is None
    assert p.tolist() == [0.1, 0.2, 0.7], "the caller's row changed"
