"""Live texts of a namespace: bounded collections of the outputs of its requests, the newest last.

Token sequences only, no stores or snapshots. Equal texts count once, as the newest of them: otherwise one request sent
over and over would drive everything else out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from threading import Lock

import numpy as np

from retrieval_store.index.index import Tokens

SHORTEST = 3  # tokens; a shorter text predicts nothing
MOST_PENDING = 1024  # texts that wait for the store


class LiveTexts:
    """Different texts, the newest last, within a limit of tokens.

    Args:
        limit: tokens; the oldest texts go first, and of a text that is longer by itself its end stays.
        vocab_size: a text with an id beyond is not taken.
    """

    def __init__(self, limit: int, vocab_size: int) -> None:
        self._limit = limit
        self._vocab_size = vocab_size
        self._texts: OrderedDict[bytes, Tokens] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        """Number of texts."""
        return len(self._texts)

    def add(self, tokens: Sequence[int] | Tokens) -> bool:
        """Take a text; returns whether the set of texts changed."""
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

    def extend(self, texts: Iterable[Sequence[int] | Tokens]) -> None:
        """Take several, in order."""
        for text in texts:
            self.add(text)

    def clear(self) -> None:
        """Forget all."""
        self._texts.clear()
        self.tokens = 0

    def documents(self) -> list[Tokens]:
        """All texts, the oldest first."""
        return list(self._texts.values())


class Pending:
    """Texts on their way to the store's log: filled by any thread, emptied by one; the oldest are lost when full."""

    def __init__(self, limit: int = MOST_PENDING) -> None:
        self._texts: deque[Sequence[int]] = deque()
        self._limit = limit
        self._lock = Lock()
        self.dropped = 0

    def __len__(self) -> int:
        """Number of texts that wait."""
        return len(self._texts)

    def put(self, texts: Sequence[Sequence[int]]) -> None:
        """Add texts at the end."""
        with self._lock:
            self._texts.extend(texts)
            while len(self._texts) > self._limit:
                self._texts.popleft()
                self.dropped += 1

    def drop(self, texts: Sequence[Sequence[int]]) -> None:
        """Count texts that were taken and could not be delivered."""
        with self._lock:
            self.dropped += len(texts)

    def take(self) -> list[Sequence[int]]:
        """All that wait."""
        with self._lock:
            taken = list(self._texts)
            self._texts.clear()
        return taken

    def put_back(self, texts: Sequence[Sequence[int]]) -> None:
        """Texts that could not be delivered wait again, before all others."""
        with self._lock:
            self._texts.extendleft(reversed(texts))
            while len(self._texts) > self._limit:
                self._texts.popleft()
                self.dropped += 1
