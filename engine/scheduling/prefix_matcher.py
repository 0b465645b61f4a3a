"""The prefix matcher: finds the longest prefix of a new sequence in cached prefixes and in running sequences.

It offers only rows that the target has confirmed: rows after the root of a tree may still move, and chunks in flight
may fail. A stage copies the rows (``SequenceStart``) before it writes the first step of the new sequence.

A match consists of whole blocks. Its length is reported and shows in the time to the first token. With matches of any
length a client could guess the text of another token by token; with blocks it must guess all tokens of a block at once.
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
    """A prefix in the cache."""

    n: int  # tokens in whole blocks, for a drafter one less
    blocks: list[int]  # that hold them, in text order
    top_ids: PromptTopIds  # after these tokens, as the sequence needs them


class PrefixMatcher:
    """Finds prefixes for new sequences, and caches the texts of ended ones.

    Args:
        blocks: of the cache; the allocator evicts prefixes from the blocks that it allocates.
        cached: prefixes in free blocks; None: prefix caching is off, and nothing is ever found.
    """

    def __init__(self, blocks: BlockAllocator, cached: CachedPrefixes | None) -> None:
        self._blocks = blocks
        self._cached = cached

    def free_and_cache(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence and cache its text in them; without prefix caching, do nothing."""
        if self._cached is not None:
            text = self._prefix_of(sequence)
            self._blocks.free(sequence.seq)
            self._cached.add(text)

    def evict_all(self) -> None:
        """Evict all cached prefixes, because the target's state is lost."""
        if self._cached is not None:
            self._cached.evict_all()

    def find(self, sequence: Sequence, live: Iterable[Sequence]) -> PrefixMatch:
        """Return the longest prefix of a sequence's text, without its last token, which is always forwarded.

        Args:
            sequence: a new one.
            live: sequences that own blocks.
        """
        needs = sequence.needs
        reads_all = needs.hidden_layer is not None or needs.heads or sequence.needs_prompt_logprobs
        if self._cached is None or reads_all:
            return PrefixMatch(0, [], PromptTopIds())
        size = self._blocks.block_size
        best, n_best = None, 0
        known = self._cached.sharing_first_block(sequence.request.scope, sequence.tokens)
        for text in [*known, *(self._prefix_of(other) for other in live if self._may_share(sequence, other))]:
            if needs.drafter and not text.is_drafted:
                continue
            n = _shared(sequence, text, n_best, size)
            if n > n_best:
                best, n_best = text, n
        if best is None:
            return PrefixMatch(0, [], PromptTopIds())
        if best in known:
            self._cached.mark_used(best)
        # The drafter's row of the last shared token depends on the token after it, so that token is forwarded again.
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

    def _prefix_of(self, sequence: Sequence) -> CachedPrefix:
        n = sequence.n_stable
        blocks = self._blocks.table(sequence.seq)[: self._blocks.blocks_for(n)]
        drafted = sequence.needs.drafter
        return CachedPrefix(sequence.request.scope, sequence.tokens[:n], blocks, sequence.prompt_top_ids, drafted)


def _shared(sequence: Sequence, text: CachedPrefix, n_best: int, size: int) -> int:
    """Return the tokens in whole blocks that a sequence and a text share; 0 if they are no more than ``n_best``."""
    limit = min(sequence.n_prefill - 1, len(text.tokens))
    n_rows = text.top_ids.n_for(sequence.needs)
    limit = limit if n_rows is None else min(limit, n_rows)
    last = n_best + size - 1  # the last token of the next block
    if limit <= last or text.tokens[last] != sequence.tokens[last]:
        return 0
    n = common_prefix(sequence.tokens, text.tokens, limit)
    return n - n % size
