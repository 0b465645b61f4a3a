"""The prefix matcher: finds the longest prefix of a new sequence in the cached prefixes and in running sequences.

It offers only rows that the target has confirmed: rows behind the root of a tree may still have to be moved, and chunks
in flight may fail. A stage copies the rows (``SequenceStart``) before it writes the first step of the new sequence.

A match ends with a block. Its length is reported and shows in the time to the first token: a match that ended anywhere
would confirm a guess at another text token by token, where a block takes a guess at all of its tokens at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.kv.blocks import BlockAllocator
from engine.kv.cached_prefixes import CachedPrefix, CachedPrefixes, common_prefix
from engine.kv.prompt_top_ids import PromptTopIds
from engine.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A prefix that is in the cache."""

    n: int  # tokens; in whole blocks, or for a drafter one less
    blocks: list[int]  # that hold them, in text order
    top_ids: PromptTopIds  # behind these tokens, as the sequence's needs ask for them


class PrefixMatcher:
    """Looks up and remembers prefixes.

    Args:
        blocks: of the cache; the allocator reports to ``cached`` which blocks are taken.
        cached: prefixes in free blocks; None: prefix caching is off, and nothing is ever found.
    """

    def __init__(self, blocks: BlockAllocator, cached: CachedPrefixes | None) -> None:
        self._blocks = blocks
        self._cached = cached

    def keep(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence, and remember the prefix in them."""
        if self._cached is not None:
            text = self._text(sequence)
            self._blocks.release(sequence.seq)
            self._cached.keep(text)

    def forget(self) -> None:
        """Drop all prefixes: the target's state is gone."""
        if self._cached is not None:
            self._cached.clear()

    def find(self, sequence: Sequence, live: Iterable[Sequence]) -> PrefixMatch:
        """The longest prefix of a sequence's text, without its last token: that one is always forwarded."""
        needs = sequence.needs
        reads_all = needs.hidden_layer is not None or needs.heads or sequence.wants_prompt_logprobs
        if self._cached is None or reads_all:
            return PrefixMatch(0, [], PromptTopIds())
        size = self._blocks.block_size
        best, n_best = None, 0
        known = self._cached.sharing_first_block(sequence.request.scope, sequence.tokens)
        for text in [*known, *(self._text(other) for other in live if self._may_share(sequence, other))]:
            if needs.drafter and not text.is_drafted:
                continue
            n = _shared(sequence, text, n_best, size)
            if n > n_best:
                best, n_best = text, n
        if best is None:
            return PrefixMatch(0, [], PromptTopIds())
        if best in known:
            self._cached.use(best)
        # The drafter's row behind the last shared token has the token behind it, so that one is forwarded again.
        n = n_best - 1 if needs.drafter else n_best
        return PrefixMatch(n, best.blocks[: n_best // size], best.top_ids.copy(n, needs))

    def _may_share(self, sequence: Sequence, other: Sequence) -> bool:
        size = self._blocks.block_size
        return (
            other is not sequence
            and other.request.scope == sequence.request.scope
            and other.n_stable >= size
            and other.tokens[:size] == sequence.tokens[:size]
        )

    def _text(self, sequence: Sequence) -> CachedPrefix:
        n = sequence.n_stable
        blocks = self._blocks.table(sequence.seq)[: self._blocks.blocks_for(n)]
        drafted = sequence.needs.drafter
        return CachedPrefix(sequence.request.scope, sequence.tokens[:n], blocks, sequence.prompt_top_ids, drafted)


def _shared(sequence: Sequence, text: CachedPrefix, n_best: int, size: int) -> int:
    """Tokens in the whole blocks that a sequence and a text share; 0 when they are not more than ``n_best``."""
    limit = min(sequence.n_prefill - 1, len(text.tokens))
    n_rows = text.top_ids.n_for(sequence.needs)
    limit = limit if n_rows is None else min(limit, n_rows)
    last = n_best + size - 1  # of the first block beyond
    if limit <= last or text.tokens[last] != sequence.tokens[last]:
        return 0
    n = common_prefix(sequence.tokens, text.tokens, limit)
    return n - n % size
