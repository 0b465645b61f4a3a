"""How far the rows of the mixed model are trusted at first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.tree import FloatArray
from speculators.successors.corpora import BUCKETS
from speculators.successors.table import TAIL


class Trusts(NamedTuple):
    """Shares of the probability that is left, by order."""

    text: FloatArray  # [TAIL + 1, 3, 2]: order; seen once, twice, more; several successors or one
    target: FloatArray  # [TAIL + 1]: order; 0 that of the vocabulary's rows
    corpus: FloatArray  # [TAIL + 1, BUCKETS, 2]: order; occurrences; several successors or one


def first_trusts() -> Trusts:
    """Trusts before a request has shown its own.

    Fitted by maximum likelihood on other prompts than those that figures are reported on, temperature
    0.8, then rounded and made to rise with the counts; they move by themselves from here (``adapt``).
    """
    text = np.zeros((TAIL + 1, 3, 2), np.float32)
    text[1:, :, 0] = (0.11, 0.12, 0.15)  # several successors: seen once, twice, more
    text[1:, :, 1] = (0.10, 0.25, 0.45)  # always the same one
    text[1, :, 1] = (0.15, 0.28, 0.78)
    text[2, 2, 1] = 0.65
    text[7:, 1, 1] = 0.50
    target = np.full(TAIL + 1, 0.25, np.float32)
    target[:5] = (0.30, 0.44, 0.50, 0.20, 0.20)
    corpus = np.zeros((TAIL + 1, BUCKETS, 2), np.float32)
    corpus[1:, :, 0] = (0.15, 0.10, 0.14, 0.18)  # occurrences: one, two or three, up to 15, more
    corpus[1:, :, 1] = (0.08, 0.19, 0.32, 0.40)
    corpus[6:, :2, 1] = (0.18, 0.23)
    corpus[1, 1:, 0] = (0.15, 0.27, 0.50)
    corpus[2, 3, 0] = 0.30
    return Trusts(text, target, corpus)
