"""The interface of retrieval: the longest suffix of a context that occurs in a corpus, and what followed it most often.

A ``Library`` decides which requests may query which index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = "npt.NDArray[np.int32]"

ROOT = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a query, by default those of REST (arXiv 2311.08252); a value out of range raises ValueError."""

    longest: int = 16  # most tokens of a match
    shortest: int = 2  # fewest tokens of a match
    samples: int = 5000  # most occurrences counted, spread evenly over all of them
    depth: int = 10  # most tokens of a continuation
    nodes: int = 64  # most nodes returned, the most frequent ones

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"shortest is {self.shortest}; it must be from 1 to longest, {self.longest}")
        if min(self.samples, self.depth, self.nodes) < 1:
            raise ValueError(f"samples {self.samples}, depth {self.depth} and nodes {self.nodes} must be at least 1")


@dataclass(frozen=True, slots=True)
class Continuations:
    """A tree of what followed the occurrences of the context's longest matching suffix.

    The most frequent nodes come first, shallow ones first among equals. So parents precede children, and the first
    ``k`` nodes are a tree for each ``k``.
    """

    match: int  # tokens of the context that matched
    counted: int  # occurrences that were counted
    tokens: Sequence[int]  # [n]
    parents: Sequence[int]  # [n], indices into tokens; ROOT: followed directly
    counts: Sequence[int]  # [n], occurrences that continued along this path

    def without(self, is_dropped: Sequence[bool]) -> Continuations:
        """Return the tree without some nodes ``[n]`` and all nodes below them."""
        new: dict[int, int] = {ROOT: ROOT}
        for node, parent in enumerate(self.parents):
            if parent in new and not is_dropped[node]:
                new[node] = len(new) - 1
        kept = [node for node in new if node != ROOT]
        return Continuations(
            self.match,
            self.counted,
            [self.tokens[node] for node in kept],
            [new[self.parents[node]] for node in kept],
            [self.counts[node] for node in kept],
        )


class Suffixes(NamedTuple):
    """A suffix array over texts, for compiled callers; read-only."""

    text: npt.NDArray[Any]  # uint32 ids of all documents, an end after each
    order: npt.NDArray[Any]  # [n], uint32, positions of all tokens, sorted by the tokens that begin there
    starts: npt.NDArray[np.int64]  # [ids + 1], where in the order the suffixes begin that start with an id


class Index(Protocol):
    """Prefix search over the token sequences of a corpus; immutable."""

    @property
    def suffixes(self) -> Suffixes | None:
        """The suffix array; None if a position takes more than 32 bits."""

    def query(self, context: Tokens, limits: Limits) -> Continuations | None:
        """Return the longest suffix of ``context`` ``[t]`` that occurs, and its continuations, within the limits.

        None if no suffix of at least ``limits.shortest`` tokens occurs. A suffix that occurs only at the end of
        documents has a match and no nodes.
        """


SHARED = ""  # the namespace of requests that name none; its texts are visible to all namespaces


class Library(Protocol):
    """Returns indexes, which may be others at the next call."""

    def of(self, namespace: str) -> Sequence[Index]:
        """Return the indexes that requests of ``namespace`` may query now, the most specific first.

        Called for every draft: it takes no lock, reads no file and raises nothing. An index stays valid as long as the
        caller holds it. The indexes of one namespace have no text of another, but all have that of ``SHARED``.
        """


class FixedLibrary:
    """Returns the same indexes for every namespace."""

    def __init__(self, *indexes: Index) -> None:
        self._indexes = indexes

    def of(self, namespace: str) -> Sequence[Index]:
        return self._indexes
