"""The candidate pool of SPECTRA-CORE (SPECTRA, Le et al., 2025, Algorithm 1, lines 25-34 and 43).

The pool has ``W`` rows of ``N - 1`` tokens. Each step sends some of them as probe branches, and the target's answer
extends each of these by one token to an n-gram of ``N`` tokens that the target finds likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from engine.protocol import Outcome
from speculators.ngrams.dictionaries import ForwardDictionary, Tokens
from speculators.node_counter import NodeCounter


class CandidatePool:
    """The rows of one request; each step probes as many as fit, from the cursor on.

    Args:
        prompt: the tokens to draw the first rows from, at least one.
        n_rows: ``W``.
        row_length: ``N - 1``.
        explore: probability that a row continues with the target's best token that is no key of ``S_fwd`` yet.
        rng: the request's own generator; draws once per extended row.
    """

    def __init__(self, prompt: Sequence[int], n_rows: int, row_length: int, explore: float, rng: Random) -> None:
        drawn = rng.choices(prompt, k=n_rows * row_length)
        self.rows: list[Tokens] = [tuple(drawn[i : i + row_length]) for i in range(0, len(drawn), row_length)]
        self._cursor = 0
        self._explore = explore
        self._rng = rng
        self._probed: list[int] = []  # rows of the current step

    def choose(self, counter: NodeCounter, budget: int) -> list[Tokens]:
        """Return the rows to probe, and add them to ``counter``: as many as fit whole into ``budget`` nodes."""
        self._probed = []
        for index in (*range(self._cursor, len(self.rows)), *range(self._cursor)):
            if not counter.add_whole(self.rows[index], budget):
                break
            self._probed.append(index)
        return [self.rows[index] for index in self._probed]

    def advance(self, outcome: Outcome, forward: ForwardDictionary) -> list[Tokens]:
        """Extend every answered row by one token and drop its first; return the n-grams of ``N`` tokens.

        A row whose probe the composer dropped stays as it is. ``forward`` must not know this step's n-grams yet:
        Algorithm 1 extends all rows first.
        """
        ngrams: list[Tokens] = []
        last = self._probed[0] if self._probed else self._cursor - 1
        for index in self._probed:
            row = self.rows[index]
            best = outcome.top_ids_after(row)
            if len(best):
                explores = self._rng.random() < self._explore
                new = next((token for token in best if token not in forward), best[0]) if explores else best[0]
                ngrams.append((*row, int(new)))
                self.rows[index] = ngrams[-1][1:]
                last = index
        self._cursor = (last + 1) % len(self.rows)
        self._probed = []
        return ngrams
