"""The lookahead window (Fu et al. 2024, arXiv 2402.02057, section 3 and Algorithm 2).

The window is two-dimensional: ``W`` columns are positions of the future, ``N - 1`` rows are the last Jacobi iterations,
the oldest first. A forward continues every column by one token; each then holds ``N`` tokens: an n-gram.

**As a token tree.** The oldest row is a chain below the root, the *trunk*; the younger tokens of column ``i`` hang
below the trunk's ``i``-th node, one below the other (level 5)::

    root -- k1 -- k2 -- k3 -- ...         trunk: the oldest token k_i of every column i >= 1
     |      |     |     |
     a0     a1    a2    a3                one branch per column: column i is k_i a_i b_i c_i,
     b0     b1    b2    b3                and column 0 has the root for its k
     c0     c1    c2    c3
     :      :     :     :                 read back behind the last token of every column: d_i

So column ``i`` is one probe branch ``k_1 .. k_i a_i b_i c_i``, and the composer merges the trunks. This *is* the
original's attention mask: a token of column ``i`` sees the context, the root, ``k_1 .. k_i``, the older tokens of its
own column and itself, nothing else. Equal, too: the positions (a token of row ``l``, counted from 0, in column ``i``
stands ``i + l`` behind the root, which is its depth in the tree), the argmax whatever the temperature, how filling and
sliding move the tokens, and the order in which n-grams enter the pool. Not equal:

* two nodes with the same path are one node here (the same computation, done once);
* the original forwards the first row together with the prompt; a prefill has no tree here, so that filling takes
  ``N - 2`` decode forwards instead of ``N - 3``;
* while filling, the original also forwards column 0 and drops the answer; here it is left out;
* the original has no limit on nodes. Here columns that do not fit into a step wait as they are, the right-most first:
  the window shrinks to what fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol import Outcome
from speculators.ngrams.dictionaries import Tokens
from speculators.node_counter import NodeCounter


class LookaheadWindow:
    """The columns of one request.

    Args:
        oldest: the first row, ``[W + N - 3]`` tokens, one for every position behind the root.
        level: ``N``, at least 3.
    """

    def __init__(self, oldest: Sequence[int], level: int) -> None:
        self._columns: list[list[int]] = [[], *([token] for token in oldest)]
        self._level = level
        self._to_fill = level - 2  # forwards until the window is full
        self._probed: list[tuple[int, Tokens]] = []  # (column, its path) of the step under way
        self._root = 0  # the token in front of column 0, of the step under way

    @property
    def is_full(self) -> bool:
        """Whether the first ``N - 2`` rows are there: from now on columns yield n-grams."""
        return self._to_fill == 0

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
        """The paths to probe now: columns from the left, as long as ``counter`` stays within ``budget`` nodes."""
        self._root = root
        self._probed = []
        for column, path in enumerate(self.paths, 0 if self.is_full else 1):
            if not counter.add_whole(path, budget):
                break
            self._probed.append((column, path))
        return [path for _, path in self._probed]

    def advance(self, outcome: Outcome) -> list[Tokens]:
        """Continue every answered column by the target's best token and slide by one; returns the n-grams ``[N]``."""
        ngrams: list[Tokens] = []
        grown: set[int] = set()
        for column, path in self._probed:
            best = outcome.top_ids_after(path)
            if len(best):
                self._columns[column].append(int(best[0]))
                grown.add(column)
        self._probed = []
        if self.is_full:
            for column in sorted(grown):
                ngram = self._slid(column)
                if ngram is not None:
                    ngrams.append(ngram)
        elif 1 in grown:
            self._fill()
        return ngrams

    def _slid(self, column: int) -> Tokens | None:
        """Drop the oldest token of a column that has one too many; returns the n-gram it was."""
        tokens = self._columns[column]
        ngram = (self._root, *tokens) if column == 0 else tuple(tokens)
        if len(ngram) < self._level:
            return None
        del tokens[0]
        return ngram

    def _fill(self) -> None:
        """A row more: the new root takes the place of the trunk's first token, every column moves left."""
        del self._columns[0]
        del self._columns[0][0]
        self._to_fill -= 1
