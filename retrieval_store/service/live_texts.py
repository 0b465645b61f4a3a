"""Bounded collections of the outputs of a namespace's requests, as token sequences, the newest last."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from threading import Lock

import numpy as np

from retrieval_store.index.index import Tokens

SHORTEST = 3  # tokens; a shorter text predicts nothing
MOST_PENDING = 1024  # texts that wait for the store


class LiveTexts:
    """Different texts, the newest last, up to a number of tokens.

    Equal texts count once, as the newest of them: otherwise one repeated request would displace everything else.

    Args:
        limit: tokens; the oldest texts are dropped first, and of a text longer than this only the end is kept.
        vocab_size: a text with an id beyond it is refused.
    """

    def __init__(self, limit: int, vocab_size: int) -> None:
        self._limit = limit
        self._vocab_size = vocab_size
        self._texts: OrderedDict[bytes, Tokens] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, tokens: Sequence[int] | Tokens) -> bool:
        """Add a text; return whether the set of texts changed."""
        ids = np.asarray(tokens, np.int64)[-self._limit :]
        if len(ids) < SHORTEST or not 0 <= ids.min() <= ids.max() < self._vocab_size:
            return False
        text = ids.astype(np.int32)
        key = text.tobytes()
        if key in self._texts:
            self._texts.move_to_end(key)
            return False
        self._texts[key] = text
        self.tokens += len(text)
        while self.tokens > self._limit:
            _, oldest = self._texts.popitem(last=False)
            self.tokens -= len(oldest)
        return True

    def clear(self) -> None:
        self._texts.clear()
        self.tokens = 0

    def documents(self) -> list[Tokens]:
        """Return all texts, the oldest first."""
        return list(self._texts.values())


class Pending:
    """Texts on their way to the store's log: filled by any thread, emptied by one; the oldest are lost when full."""

    def __init__(self, limit: int = MOST_PENDING) -> None:
        self._texts: deque[Sequence[int]] = deque()
        self._limit = limit
        self._lock = Lock()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, texts: Sequence[Sequence[int]]) -> None:
        with self._lock:
            self._texts.extend(texts)
            self._drop_oldest()

    def take(self) -> list[Sequence[int]]:
        """Remove and return all texts."""
        with self._lock:
            taken = list(self._texts)
            self._texts.clear()
        return taken

    def put_back(self, texts: Sequence[Sequence[int]]) -> None:
        """Put texts that could not be delivered before all others."""
        with self._lock:
            self._texts.extendleft(reversed(texts))
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._texts) > self._limit:
            self._texts.popleft()
            self.dropped += 1
