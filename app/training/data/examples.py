"""Texts to train on, and which of their tokens the target wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.reporting.summaries import loop_start


@dataclass(frozen=True, slots=True)
class Example:
    """A text. What was written for one source question never lies on both sides of the split."""

    source: str  # ``source_of`` the question
    tokens: Sequence[int]
    first: int  # tokens from here on count: the target wrote them; at least 1
    temperature: float | None = None  # at which they were written; None: not known, or by another author

    @property
    def written(self) -> Sequence[int]:
        """The tokens that count."""
        return self.tokens[self.first :]

    def before_loop(self) -> Example:
        """The same up to where it begins to repeat itself."""
        start = loop_start(self.written)
        return self if start is None else replace(self, tokens=self.tokens[: self.first + start])

    def cut(self, longest: int) -> Example:
        """Its first tokens."""
        return replace(self, tokens=self.tokens[:longest])


def source_of(question: str) -> str:
    """What names a question, whatever blanks are around it: 64 bits as hexadecimal digits."""
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


def most_frequent(examples: Iterable[Example], n: int, vocab_size: int) -> Tensor:
    """The ``n`` tokens that were written most, of equals the lower id, int64 ``[n]``, ascending."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for example in examples:
        counts += torch.bincount(torch.tensor(example.written), minlength=vocab_size)
    ranked = counts.sort(descending=True, stable=True).indices
    return ranked[:n].sort().values
