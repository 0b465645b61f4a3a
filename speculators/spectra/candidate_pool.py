"""SPECTRA-CORE's candidate pool (SPECTRA, Le et al., 2025, Algorithm 1, lines 25-34 and 43).

``W`` rows of tokens that the target continues by one token each, every step, as probe branches: a stream of n-grams the
target itself considers likely, most of them about tokens nothing is known about yet. A row holds the ``N - 1`` tokens
that go into the forward; the paper's ``N``-th exists only while a step is being observed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from engine.protocol import Outcome
from speculators.ngrams.dictionaries import ForwardDictionary, Tokens
from speculators.node_counter import NodeCounter


class CandidatePool:
    """The rows of one request, and which of them come next.

    When not all rows fit into a step they take turns: a step probes consecutive rows from the cursor on. A row that
    was not probed, or whose probe the composer dropped, stays as it is.

    Args:
        prompt: the tokens to draw the first rows from, at least one.
        n_rows: ``W``.
        row_length: ``N - 1``.
        explore: how often a row goes on with the target's best token that is no key of ``S_fwd`` yet.
        rng: the request's own generator; drawn from once per advanced row.
    """

    def __init__(self, prompt: Sequence[int], n_rows: int, row_length: int, explore: float, rng: Random) -> None:
        drawn = rng.choices(prompt, k=n_rows * row_length)
        self.rows: list[Tokens] = [tuple(drawn[i : i + row_length]) for i in range(0, len(drawn), row_length)]
        self.cursor = 0
        self._explore = explore
        self._rng = rng
        self._probed: list[int] = []  # rows of the step under way, filled by choose, emptied by advance

    def choose(self, counter: NodeCounter, budget: int) -> list[Tokens]:
        """The rows to probe now: as many as fit whole into ``budget`` nodes on top of what ``counter`` holds."""
        self._probed = []
        chosen: list[Tokens] = []
        for i in range(len(self.rows)):
            index = (self.cursor + i) % len(self.rows)
            row = self.rows[index]
            if not counter.add_whole(row, budget):
                break
            self._probed.append(index)
            chosen.append(row)
        return chosen

    def advance(self, outcome: Outcome, forward: ForwardDictionary) -> list[Tokens]:
        """Extend every answered row by one token and shift it; returns the n-grams ``[n_answered]`` of ``N`` tokens.

        The keys of ``forward`` must be those from before this step (Algorithm 1 predicts all rows first).
        """
        ngrams: list[Tokens] = []
        turn = self._probed[0] if self._probed else None
        for index in self._probed:
            row = self.rows[index]
            best = outcome.top_ids_after(row)
            if len(best) == 0:
                continue
            ngram = (*row, self._predict(best, forward.__contains__))
            self.rows[index] = ngram[1:]
            ngrams.append(ngram)
            turn = index
        if turn is not None:
            self.cursor = (turn + 1) % len(self.rows)
        self._probed = []
        return ngrams

    def _predict(self, best: Sequence[int], is_key: Callable[[int], bool]) -> int:
        """The target's best token; with probability ``explore`` its best that is no key yet, if there is one."""
        if self._rng.random() < self._explore:
            for token in best:
                if not is_key(token):
                    return int(token)
        return int(best[0])
