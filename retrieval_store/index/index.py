"""The interface of retrieval: the longest suffix of a context that occurs in a corpus, and what followed it most often.

An index is immutable. A ``Library`` hands indexes out and so decides which requests may ask which index.
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
    """How far a query goes; the defaults are those of REST (arXiv 2311.08252).

    Raises:
        ValueError: a value is out of range.
    """

    longest: int = 16  # tokens; the first suffix length that may match
    shortest: int = 2  # tokens; the last one
    samples: int = 5000  # occurrences counted, spread evenly over all of them
    depth: int = 10  # tokens of a continuation
    nodes: int = 64  # most frequent prefixes of continuations returned

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"need 1 <= shortest <= longest, got {self.shortest} and {self.longest}")
        if min(self.samples, self.depth, self.nodes) < 1:
            raise ValueError(f"samples {self.samples}, depth {self.depth} and nodes {self.nodes} must be at least 1")


@dataclass(frozen=True, slots=True)
class Continuations:
    """A tree of what followed occurrences of the context's longest matching suffix.

    Most frequent first, shallow first among equals: parents precede children, and any number of first nodes is a tree.
    """

    match: int  # tokens of the context that matched
    counted: int  # occurrences that were looked at
    tokens: Sequence[int]  # [n]
    parents: Sequence[int]  # [n], indices into tokens, ROOT for what followed directly
    counts: Sequence[int]  # [n], occurrences that went on along this path

    def without(self, is_dropped: Sequence[bool]) -> Continuations:
        """Without some nodes ``[n]`` and all below them."""
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

    text: npt.NDArray[Any]  # uint32 ids of all documents, an end behind each
    order: npt.NDArray[Any]  # [n], uint32, positions of all tokens in the order of what begins there
    starts: npt.NDArray[np.int64]  # [ids + 1], where in the order the suffixes begin that start with an id


class Index(Protocol):
    """Prefix search over the token sequences of a corpus."""

    @property
    def suffixes(self) -> Suffixes | None:
        """What queries search; None where a position takes more than 32 bits."""

    def query(self, context: Tokens, limits: Limits) -> Continuations | None:
        """The longest suffix of ``context`` ``[t]`` within the limits that occurs, and its continuations.

        None when no suffix of at least ``limits.shortest`` tokens occurs. A suffix that only occurs at the very end of
        documents has a match and no nodes.
        """


SHARED = ""  # the namespace of requests that name none; its texts are visible to all namespaces


class Library(Protocol):
    """Hands out indexes. What it hands out may change between two calls; an index itself never does."""

    def of(self, namespace: str) -> Sequence[Index]:
        """The indexes that requests of ``namespace`` may ask now, the most specific first; may be empty.

        Called for every draft: it takes no lock, reads no file and raises nothing. An index stays valid for as long as
        the caller holds it. No index of one namespace holds text of another; text of ``SHARED`` is in those of all.
        """


class FixedLibrary:
    """The same indexes for every namespace, for good."""

    def __init__(self, *indexes: Index) -> None:
        self._indexes = indexes

    def of(self, namespace: str) -> Sequence[Index]:
        """See ``Library.of``."""
        return self._indexes
