"""Cached prefixes: texts whose keys and values are still in free blocks, for new sequences that begin alike.

Knows block numbers and tokens, no tensors. A cached prefix owns nothing: its blocks are free, and allocating one of
them evicts the prefix from that block on. So no block can leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.kv.prompt_top_ids import PromptTopIds

STRIDE = 256  # tokens compared at once


@dataclass(slots=True, eq=False)
class CachedPrefix:
    """The first tokens of a text, whose rows lie in ``blocks``."""

    scope: str  # only requests of the same scope may share the prefix
    tokens: list[int]
    blocks: list[int]
    top_ids: PromptTopIds  # best next ids after these tokens, if they were read back
    is_drafted: bool = False  # whether the trained drafter's cache holds these tokens in the same blocks


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Return how many first tokens two texts share, at most ``limit``."""
    limit = min(limit, len(a), len(b))
    n = 0
    while n < limit and a[n : n + STRIDE] == b[n : n + STRIDE]:
        n += STRIDE
    while n < limit and a[n] == b[n]:
        n += 1
    return min(n, limit)


def _first_rows(top_ids: PromptTopIds, n: int) -> PromptTopIds:
    """Return a copy of the first ``n`` positions in one array; views would keep the arrays of whole steps alive."""
    copied = PromptTopIds()
    ids, logprobs = top_ids.part(0, min(n, top_ids.n))
    if ids is not None:
        copied.append(ids.copy(), None if logprobs is None else logprobs.copy())
    return copied


class CachedPrefixes:
    """The cached prefixes of one KV cache; the least recently used one is evicted first.

    Args:
        n_blocks: blocks in the cache.
        block_size: tokens per block; shorter texts are not cached.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.mask = np.zeros(n_blocks, dtype=np.bool_)  # blocks that hold a prefix
        self._by_block: dict[int, CachedPrefix] = {}
        self._by_start: dict[tuple[str, tuple[int, ...]], dict[CachedPrefix, None]] = {}
        self._all: dict[CachedPrefix, None] = {}  # in order of their last use

    def __len__(self) -> int:
        """Cached prefixes."""
        return len(self._all)

    def add(self, text: CachedPrefix) -> None:
        """Cache a prefix whose blocks have just become free."""
        if len(text.tokens) < self.block_size:
            return
        text.top_ids = _first_rows(text.top_ids, len(text.tokens))
        self.mask[text.blocks] = True
        self._by_block.update(dict.fromkeys(text.blocks, text))
        self._by_start.setdefault(self._start(text.scope, text.tokens), {})[text] = None
        self._all[text] = None

    def sharing_first_block(self, scope: str, tokens: list[int]) -> list[CachedPrefix]:
        """Return the prefixes of a scope whose first block holds the same tokens as that of ``tokens``."""
        return [*self._by_start.get(self._start(scope, tokens), ())]

    def mark_used(self, text: CachedPrefix) -> None:
        """Mark a prefix as most recently used."""
        del self._all[text]
        self._all[text] = None

    def evict_from(self, block: int) -> None:
        """Cut the prefix that ``block`` holds before that block, which a sequence now owns."""
        text = self._by_block.get(block)
        if text is not None:
            self._cut(text, text.blocks.index(block))

    def evict_oldest(self) -> None:
        """Evict the least recently used prefix."""
        self._cut(next(iter(self._all)), 0)

    def evict_all(self) -> None:
        """Evict every prefix, because the target's state is lost."""
        self.mask[:] = False
        self._by_block.clear()
        self._by_start.clear()
        self._all.clear()

    def _cut(self, text: CachedPrefix, n_blocks: int) -> None:
        start = self._start(text.scope, text.tokens)
        for block in text.blocks[n_blocks:]:
            self.mask[block] = False
            del self._by_block[block]
        del text.blocks[n_blocks:]
        del text.tokens[n_blocks * self.block_size :]
        if n_blocks == 0:
            del self._all[text]
            alike = self._by_start[start]
            del alike[text]
            if not alike:
                del self._by_start[start]
        else:
            text.top_ids = _first_rows(text.top_ids, len(text.tokens))

    def _start(self, scope: str, tokens: list[int]) -> tuple[str, tuple[int, ...]]:
        return scope, tuple(tokens[: self.block_size])

    def check_integrity(self) -> None:
        """Assert that every block belongs to the text that it is listed for; for tests and debugging."""
        blocks = [block for text in self._all for block in text.blocks]
        assert len(blocks) == len(set(blocks)), "a block holds two texts"
        assert set(blocks) == set(self._by_block) == set(np.flatnonzero(self.mask).tolist())
        for text in self._all:
            assert len(text.blocks) == -(-len(text.tokens) // self.block_size) > 0
            assert text in self._by_start[self._start(text.scope, text.tokens)]
        assert sum(map(len, self._by_start.values())) == len(self._all)
