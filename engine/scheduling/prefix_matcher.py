"""Finds the beginning of a newcomer's text in the cache: in what is kept of others, or in what others have there now.

Offered is only what the target has confirmed: rows behind the root of a tree may still have to be moved, chunks in
flight may fail. The rows are copied (``SequenceStart``), before anything of the newcomer's first step is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.kv.blocks import BlockAllocator
from engine.kv.cached_prefixes import CachedPrefix, CachedPrefixes, common
from engine.kv.prompt_top_ids import PromptTopIds
from engine.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The beginning of a text in the cache."""

    n: int  # tokens
    blocks: list[int]  # that hold them, in text order
    rows: PromptTopIds  # what its needs want behind them


class PrefixMatcher:
    """Knows what is kept.

    Args:
        blocks: of the cache; they tell which are taken.
        kept: what they were told of; None: nothing is kept and nothing found.
    """

    def __init__(self, blocks: BlockAllocator, kept: CachedPrefixes | None) -> None:
        self._blocks = blocks
        self._kept = kept

    def keep(self, sequence: Sequence) -> None:
        """A sequence that the target knows gives up its blocks."""
        if self._kept is not None:
            text = self._text(sequence)
            self._blocks.release(sequence.seq)
            self._kept.keep(text)

    def forget(self) -> None:
        """The target's state is gone."""
        if self._kept is not None:
            self._kept.clear()

    def find(self, sequence: Sequence, live: Iterable[Sequence]) -> PrefixMatch:
        """The longest beginning of a sequence's text; its last token is always read, for what follows from it."""
        needs = sequence.needs
        if self._kept is None or needs.hidden_layer is not None or needs.heads:
            return PrefixMatch(0, [], PromptTopIds())
        size = self._blocks.block_size
        best, n_best = None, size - 1
        known = self._kept.sharing_first_block(sequence.request.namespace, sequence.tokens)
        for text in [*known, *(self._text(other) for other in live if self._may_share(sequence, other))]:
            n = _shared(sequence, text, n_best)
            if n > n_best:
                best, n_best = text, n
        if best is None:
            return PrefixMatch(0, [], PromptTopIds())
        if best in known:
            self._kept.use(best)
        return PrefixMatch(n_best, best.blocks[: -(-n_best // size)], best.top_ids.copy(n_best, needs))

    def _may_share(self, sequence: Sequence, other: Sequence) -> bool:
        size = self._blocks.block_size
        return (
            other is not sequence
            and other.request.namespace == sequence.request.namespace
            and other.n_stable >= size
            and other.tokens[:size] == sequence.tokens[:size]
        )

    def _text(self, sequence: Sequence) -> CachedPrefix:
        n = sequence.n_stable
        blocks = self._blocks.table(sequence.seq)[: self._blocks.blocks_for(n)]
        return CachedPrefix(sequence.request.namespace, sequence.tokens[:n], blocks, sequence.prompt_top_ids)


def _shared(sequence: Sequence, text: CachedPrefix, n_best: int) -> int:
    """Tokens that a text could save, 0 when they are not more than ``n_best``."""
    limit = min(sequence.n_prefill - 1, len(text.tokens))
    n_rows = text.top_ids.n_for(sequence.needs)
    limit = limit if n_rows is None else min(limit, n_rows)
    if limit <= n_best or text.tokens[n_best] != sequence.tokens[n_best]:
        return 0
    return common(sequence.tokens, text.tokens, limit)
