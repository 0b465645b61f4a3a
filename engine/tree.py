"""Tokens of a request: the tree of drafted ones, which a target scores in one step, and a buffer of committed ones.

Vocabulary, used across the project:

* **root**: the last committed token. It is forwarded with the tree, in row 0, and is not a node.
* **node**: one drafted token. Node ``i`` (0-based) is row ``i + 1`` of the forward pass.
* **parent**: index of the node before it on its path, ``-1`` when that is the root.
* **probe**: a node that is never accepted; only the target's top ids after it are read back.
* **source**: the speculator that proposed a node first.

This module knows only arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import lt

import numpy as np
import numpy.typing as npt

ROOT = -1

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]

_CHAIN = [*range(ROOT, 255)]  # parents of a chain
_NO_NODES: frozenset[int] = frozenset()


class TokenTree:
    """An immutable tree of drafted tokens; parents always precede their children.

    Args:
        tokens: token id of every node, ``[n_nodes]``.
        parents: parent node of every node, ``ROOT`` for children of the root, ``[n_nodes]``.
        sources: index into ``source_names`` of every node, ``[n_nodes]``; all 0 when omitted.
        probe: whether a node is a probe, ``[n_nodes]``; none when omitted.
        source_names: names of the speculators that drafted.
        q: distribution each node's token was drawn from, ``[n_nodes, vocab]`` fp32, or ``None`` when all nodes
            count as one-hot (deterministic) proposals. A row of zeros marks a single node as one-hot.
        probe_ends: last node of every probe branch, even if merged with a normal node; top ids are read back there.
        proposers: the sources that proposed a node, as a bit set, ``[n_nodes]``; its own source when omitted.
        scores: estimated probability of a node once its parent is accepted, by the first source that gave one,
            ``[n_nodes]``; NaN: no source did; ``None``: for no node.

    Raises:
        ValueError: the arrays differ in length, a parent does not precede its child, or a normal node is below a probe.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        sources: Sequence[int] | None = None,
        probe: Sequence[bool] | None = None,
        source_names: Sequence[str] = ("draft",),
        q: FloatArray | None = None,
        probe_ends: Iterable[int] = (),
        proposers: Sequence[int] | None = None,
        scores: Sequence[float] | None = None,
    ) -> None:
        n = len(tokens)
        self.tokens = list(tokens)
        self.parents = list(parents)
        self.sources = list(sources) if sources is not None else [0] * n
        self.probe = list(probe) if probe is not None else [False] * n
        self.source_names = tuple(source_names)
        self.q = q
        self.probe_ends = frozenset(probe_ends)
        self.scores = scores
        if proposers is not None:
            self.proposers = list(proposers)
        else:
            self.proposers = [1] * n if sources is None else [1 << source for source in self.sources]
        if not len(self.parents) == len(self.sources) == len(self.probe) == n:
            raise ValueError(
                f"{n} tokens, {len(self.parents)} parents, {len(self.sources)} sources, "
                f"{len(self.probe)} probe flags: all must be equal"
            )
        self.has_probes = True in self.probe
        self._parent_array: IntArray | None = None
        if self.has_probes or min(self.parents, default=ROOT) < ROOT or not all(map(lt, self.parents, range(n))):
            self._check_parents()

    @classmethod
    def chain(cls, tokens: list[int], source: str, scores: Sequence[float] | None = None) -> TokenTree:
        """Return a chain that one source proposed; ``tokens`` is not copied."""
        tree, n = cls.__new__(cls), len(tokens)
        tree.tokens, tree.parents = tokens, _CHAIN[:n] if n <= len(_CHAIN) else [*range(ROOT, n - 1)]
        tree.sources, tree.probe, tree.proposers = [0] * n, [False] * n, [1] * n
        tree.source_names, tree.scores = (source,), scores
        tree.q, tree.probe_ends, tree.has_probes, tree._parent_array = None, _NO_NODES, False, None
        return tree

    def _check_parents(self) -> None:
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; parents must precede their children")
            if self.has_probes and parent != ROOT and self.probe[parent] and not self.probe[node]:
                raise ValueError(
                    f"node {node} can be accepted but is below probe {parent}; nodes below a probe must be probes"
                )

    def __len__(self) -> int:
        """Number of nodes; the root is not counted."""
        return len(self.tokens)

    @cached_property
    def depths(self) -> list[int]:
        """Depth of every node, ``[n_nodes]``; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def parent_array(self) -> IntArray:
        """``parents`` as a read-only array, ``[n_nodes]``."""
        if self._parent_array is None:  # a cached property would take a lock
            self._parent_array = np.array(self.parents, np.int32)
        return self._parent_array

    @cached_property
    def children(self) -> list[list[int]]:
        """Children that may be accepted, in drafting order; entry ``i + 1`` is node ``i``'s, entry 0 the root's."""
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            if not self.probe[node]:
                children[parent + 1].append(node)
        return children

    @property
    def is_chain(self) -> bool:
        """Whether every node's parent is the node before it, so that causal attention needs no mask."""
        return self.parents == [*range(ROOT, len(self) - 1)]

    def ancestor_mask(self) -> BoolArray:
        """Return ``[n_nodes + 1, n_nodes + 1]``, rows and columns in forward order (row 0 the root).

        Entry ``[i, j]`` says whether row ``i`` attends to row ``j``: itself, its ancestors and the root.
        """
        n = len(self) + 1
        mask = np.zeros((n, n), dtype=np.bool_)
        mask[:, 0] = True
        for node, parent in enumerate(self.parents):
            row = node + 1
            if parent != ROOT:
                mask[row] = mask[parent + 1]
            mask[row, row] = True
        return mask

    def path(self, node: int) -> list[int]:
        """Return the nodes from a child of the root down to ``node``."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    @cached_property
    def _index(self) -> dict[tuple[int, int], list[int]]:
        index: dict[tuple[int, int], list[int]] = {}
        for node, edge in enumerate(zip(self.parents, self.tokens, strict=True)):
            index.setdefault(edge, []).append(node)
        return index

    def find(self, tokens: Sequence[int]) -> int | None:
        """Return the node that ``tokens`` lead to from the root (probes included), None when there is none.

        Siblings may have the same token (repeated draws); the first one that leads to the end of ``tokens`` counts.
        """
        nodes = [ROOT]
        for token in tokens:
            nodes = [below for node in nodes for below in self._index.get((node, token), ())]
            if not nodes:
                return None
        return nodes[0]


EMPTY_TREE = TokenTree((), ())


class TokenBuffer:
    """An append-only int32 array with room to grow.

    Attributes:
        length: number of committed tokens.
        array: ``[>= length]``, begins with them; another one when they need more room.
    """

    __slots__ = ("_cells", "array", "length")

    def __init__(self, tokens: Sequence[int], capacity: int = 0) -> None:
        self._set_array(np.empty(max(capacity, 2 * len(tokens), 64), dtype=np.int32))
        self.array[: len(tokens)] = tokens
        self.length = len(tokens)

    def __len__(self) -> int:
        return self.length

    def before(self, end: int) -> TokenBuffer:
        """Return the first ``end`` tokens without a copy; the result must not be extended."""
        first = TokenBuffer.__new__(TokenBuffer)
        first._cells, first.array, first.length = self._cells, self.array, end
        return first

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; earlier views stay valid, because the values of an old array never change."""
        end = self.length + len(tokens)
        if end > len(self._cells):
            grown = np.empty(2 * end, dtype=np.int32)
            grown[: self.length] = self.array[: self.length]
            self._set_array(grown)
        if len(tokens) <= 8:  # most steps; takes a fraction of the time of a slice
            cells = self._cells
            for place, token in enumerate(tokens, self.length):
                cells[place] = token
        else:
            self.array[self.length : end] = tokens
        self.length = end

    def _set_array(self, array: IntArray) -> None:
        self.array = array
        self._cells = array.data  # sets one token faster than NumPy

    @property
    def view(self) -> IntArray:
        """All committed tokens, ``[len]`` int32, read-only and without a copy."""
        return self.array[: self.length]
