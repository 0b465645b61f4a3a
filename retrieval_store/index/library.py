"""Which indexes a request may ask: the seam between whoever keeps snapshots up to date and whoever drafts from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from retrieval_store.index.index import Index

SHARED = ""  # the namespace of requests that name none; what is indexed for it is everybody's


class Library(Protocol):
    """Hands out indexes. What it hands out may change between two calls; an index itself never does."""

    def of(self, namespace: str) -> Sequence[Index]:
        """The indexes that requests of ``namespace`` may ask now, the most specific first; may be empty.

        Called for every draft: it takes no lock, reads no file and raises nothing. An index stays valid for as long as
        somebody holds it. Text of one namespace is in no index of another; that of ``SHARED`` is in everybody's.
        """


class FixedLibrary:
    """The same indexes for everybody, for good."""

    def __init__(self, *indexes: Index) -> None:
        self._indexes = indexes

    def of(self, namespace: str) -> Sequence[Index]:
        """See ``Library.of``."""
        return self._indexes
