"""The window of lookahead decoding (Fu et al. 2024, arXiv 2402.02057, section 3 and Algorithm 2).

The window has ``W`` columns, one per future position, and ``N - 1`` rows, one per Jacobi iteration. The oldest row is a
chain below the root, the *trunk*. The younger tokens of column ``i`` hang below node ``i`` of the trunk (level 5)::

    root -- k1 -- k2 -- k3 -- ...         trunk: the oldest token k_i of every column i >= 1
     |      |     |     |
     a0     a1    a2    a3                column i is k_i a_i b_i c_i; column 0 has the root as its k
     b0     b1    b2    b3
     c0     c1    c2    c3
     :      :     :     :                 the target's answers d_i after the last token of every column

Column ``i`` is one probe branch ``k_1 .. k_i a_i b_i c_i``, and the composer merges the trunks. This equals the
original's attention mask and positions. Filling takes ``N - 2`` decode steps instead of ``N - 3``, without column 0: a
prefill has no tree. If not all columns fit into a step, the right-most ones wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol import Outcome
from speculators.ngrams.dictionaries import Tokens
from speculators.node_counter import NodeCounter


class LookaheadWindow:
    """The columns of one request; ``oldest`` ``[W + N - 3]`` is the first row, ``level`` is ``N``."""

    def __init__(self, oldest: Sequence[int], level: int) -> None:
        self._columns: list[list[int]] = [[], *([token] for token in oldest)]
        self._level = level
        self._steps_to_fill = level - 2
        self._probed: list[tuple[int, Tokens]] = []  # columns of the current step and their paths
        self._root = 0  # of the current step

    @property
    def is_full(self) -> bool:
        """Whether all rows exist, so that columns yield n-grams."""
        return self._steps_to_fill == 0

    @property
    def paths(self) -> list[Tokens]:
        """One path below the root per column to forward, left to right."""
        trunk: Tokens = ()
        paths = [tuple(self._columns[0])] if self.is_full else []
        for column in self._columns[1:]:
            trunk = (*trunk, column[0])
            paths.append((*trunk, *column[1:]))
        return paths

    def choose(self, root: int, counter: NodeCounter, budget: int) -> list[Tokens]:
        """Return the paths to probe now: columns from the left while ``counter`` stays within ``budget`` nodes."""
        self._root, self._probed = root, []
        for column, path in enumerate(self.paths, 0 if self.is_full else 1):
            if not counter.add_whole(path, budget):
                break
            self._probed.append((column, path))
        return [path for _, path in self._probed]

    def advance(self, outcome: Outcome) -> list[Tokens]:
        """Add the target's best token to every probed column, slide the window, and return the n-grams ``[N]``."""
        ngrams, fills = list[Tokens](), False
        for column, path in self._probed:
            best = outcome.top_ids_after(path)
            if not len(best):
                continue
            tokens = self._columns[column]
            tokens.append(int(best[0]))
            fills |= column == 1 and not self.is_full
            ngram = (self._root, *tokens) if column == 0 else tuple(tokens)
            if self.is_full and len(ngram) == self._level:
                ngrams.append(ngram)
                del tokens[0]
        self._probed = []
        if fills:  # the trunk's first token becomes the root, every column moves left
            del self._columns[0]
            del self._columns[0][0]
            self._steps_to_fill -= 1
        return ngrams
