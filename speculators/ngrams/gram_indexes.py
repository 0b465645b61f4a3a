"""The gram indexes of all live requests, in one array for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine.protocol import RequestView
from engine.sampling.keys import GOLDEN64, U64
from engine.tree import IntArray
from retrieval_store.index.addresses import addresses_of
from speculators.ngrams.gram_index import (
    AMOUNT,
    EXAMPLE,
    LENGTH,
    N_COLUMNS,
    N_KNOWN,
    N_WORDS,
    GramIndex,
    LongArray,
    move_heads,
)
from speculators.ngrams.gram_search import NO_ROOM

Kernel = Callable[[LongArray, LongArray, int, int, IntArray], int]
NO_LINKS = np.zeros((1, 0), np.int64), np.zeros((0, 1, 4), np.int32)


class GramIndexes:
    """An index of the grams of ``shortest`` to ``longest`` tokens for every request that has begun.

    With three sizes of grams it takes up to 0.2 kB a token, from the first step that drafts.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._n_orders = longest - shortest + 1
        self._slots: dict[int, int] = {}  # by request id
        self._free: list[int] = []
        self._words = np.zeros((0, N_WORDS), np.int64)  # by slot, what ``addresses_of`` says
        self._indexes: dict[int, GramIndex] = {}  # by slot; keeps their arrays in memory
        self._views: Sequence[RequestView] = []  # of the last call; most calls have the same
        self._amounts: Sequence[int] = []
        self._steps = np.zeros((0, N_COLUMNS), np.int64)
        self._cells = self._steps.reshape(-1).data  # a cell is set faster than by NumPy

    def begin(self, view: RequestView) -> None:
        self.end(view)
        if not self._free:
            n = len(self._words)
            self._free = [*range(n, 2 * n + 16)]
            self._words = np.concatenate([self._words, np.zeros((n + 16, N_WORDS), np.int64)])
        slot = self._slots[view.request_id] = self._free.pop()
        seed = np.array(view.request.params.seed * GOLDEN64 & U64, np.uint64).astype(np.int64)
        self._set(slot, GramIndex(view.context.array, *NO_LINKS, self._shortest, int(seed), 0, 0))

    def end(self, view: RequestView) -> None:
        self._views = []
        slot = self._slots.pop(view.request_id, None)
        if slot is not None:
            del self._indexes[slot]
            self._free.append(slot)

    def call(
        self,
        kernel: Kernel,
        views: Sequence[RequestView],
        amounts: Sequence[int],
        n_draft: int,
        tie: int,
        out: IntArray,
    ) -> int:
        """Call a function of ``speculators.ngrams.gram_search`` for these requests and their amounts."""
        if views != self._views:
            self._choose(views)
        cells = self._cells
        if amounts != self._amounts:
            self._amounts = [*amounts]
            self._steps[:, AMOUNT] = self._amounts
        place = LENGTH
        for view in views:
            cells[place] = view.context.length
            place += N_COLUMNS
        n = kernel(self._words, self._steps, n_draft, tie, out)
        if n == NO_ROOM:
            self._make_room(views)
            n = kernel(self._words, self._steps, n_draft, tie, out)
        return n

    def _choose(self, views: Sequence[RequestView]) -> None:
        """Set the slots of a step."""
        slots = [self._slots[view.request_id] for view in views]
        for slot, view in zip(slots, views, strict=True):
            index = self._indexes[slot]
            if index.text is not view.context.array:
                self._set(slot, index._replace(text=view.context.array, n_known=int(self._words[slot, N_KNOWN])))
        self._steps = np.zeros((len(views), N_COLUMNS), np.int64)
        self._steps[:, 0] = slots
        self._cells = self._steps.reshape(-1).data
        self._views, self._amounts = [*views], []

    def _make_room(self, views: Sequence[RequestView]) -> None:
        """Enlarge the indexes of texts that have outgrown theirs."""
        for view in views:
            slot, length = self._slots[view.request_id], len(view.context)
            n_known = int(self._words[slot, N_KNOWN])
            index = self._indexes[slot]._replace(text=view.context.array, n_known=n_known)
            if length > len(index.links):
                most = min(view.n_prompt + view.request.params.max_tokens, 2 * length)
                size = 1 << (2 * max(most, length + length // 4, 32) - 1).bit_length()
                heads = np.zeros((self._n_orders, size), np.int64)
                links = np.empty((size // 2, self._n_orders, 4), np.int32)
                links[:n_known] = index.links[:n_known]
                move_heads(index.heads, heads)
                index = index._replace(heads=heads, links=links)
            self._set(slot, index)

    def _set(self, slot: int, index: GramIndex) -> None:
        index = index._replace(room=min(len(index.text), len(index.links)))
        self._indexes[slot] = index
        self._words[slot] = addresses_of(index, EXAMPLE)
