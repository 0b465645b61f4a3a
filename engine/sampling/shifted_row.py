"""One row of logits that is to be changed before a token is drawn from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.sampling.history import History
from engine.sampling.params import SamplingParams


@dataclass(slots=True, frozen=True)
class ShiftedRow:
    """One row that is to be changed."""

    row: int
    params: SamplingParams
    history: History | None  # of its sequence, up to the root
    path: Sequence[int]  # tokens between the history and the row

    def last_of_words(self) -> Iterator[int]:
        """Tokens that would complete a bad word behind the row."""
        before = (*(self.history.recent if self.history is not None else ()), *self.path)
        for *head, last in self.params.bad_words:
            if not head or before[-len(head) :] == tuple(head):
                yield last
