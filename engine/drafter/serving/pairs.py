"""Drafting with rows of tokens beside states: ParallelSpec and P-EAGLE in one forward, EAGLE in one per depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.batches import Share
from engine.drafter.networks.eagle3 import Eagle3
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.serving.base import hand_out, upload_ids
from engine.drafter.serving.cache import DrafterCache
from engine.drafter.serving.committed import Committed, Rows, pair_rows, token_rows
from engine.drafter.serving.levels import Level, grow_levels
from engine.drafter.trees.blocks import block_trees
from engine.drafter.trees.choice import DraftVocabulary
from engine.protocol import Branch


@dataclass(frozen=True, slots=True)
class _Masks:
    """Rows behind the last real one that draft further tokens of the same forward."""

    embedded: Tensor  # [n_masks, hidden]
    states: Tensor | None  # [n_masks, width]


class PairDrafting:
    """Rows i of token i + 1 and the state at i. Implements ``Drafting``.

    Args:
        network: with its weights.
        cache: of its layers.
        vocabulary: of its head; None: the target's.
        depth: most tokens on a path, for a drafter that was not trained for a number.
        beam: nodes expanded at a depth, and children of each, for the same.
    """

    def __init__(
        self,
        network: PairNetwork | Eagle3,
        cache: DrafterCache,
        vocabulary: DraftVocabulary | None,
        depth: int,
        beam: int,
    ) -> None:
        self._network, self._cache, self._vocabulary = network, cache, vocabulary
        self._depth, self._beam = depth, beam
        self._reads_states = network.spec.reads_states
        n_drafts = network.spec.n_drafts if network.spec.method != "eagle" else None
        self._masks = None if n_drafts is None else _Masks(*network.mask_rows(n_drafts - 1))

    @property
    def _n_masks(self) -> int:
        return 0 if self._masks is None else len(self._masks.embedded)

    def draft(self, committed: Sequence[Committed]) -> list[Branch | None]:
        """Write the rows that are complete now, and draft behind the last ones."""
        rows = [pair_rows(one) if self._reads_states else token_rows(one) for one in committed]
        masks = [0 if one.wanted is None else self._n_masks for one in committed]
        shares = [
            Share(its.first, list(range(len(its.tokens) + n)), None, True, one.sequence.table)
            for one, its, n in zip(committed, rows, masks, strict=True)
        ]
        if not any(share.depths for share in shares):
            return [None] * len(committed)
        outputs = self._forward([share for share in shares if share.depths], rows, masks)
        asked = [one for one in committed if one.wanted is not None]
        if not asked:
            return [None] * len(committed)
        lasts = _last_rows(shares, masks, [one.wanted is not None for one in committed])
        draft = self._levels if self._masks is None else self._in_one_go
        return hand_out(committed, draft(outputs, lasts, asked))

    def _forward(self, shares: Sequence[Share], rows: Sequence[Rows], masks: Sequence[int]) -> Tensor:
        """Outputs ``[n_rows, hidden]`` of all sequences' rows, masks behind real ones."""
        prepared = self._cache.prepare(shares)
        tokens = [token for its in rows for token in its.tokens]
        order = _order([len(its.tokens) for its in rows], masks)
        token_ids, placed = upload_ids(prepared.positions.device, tokens, order if any(masks) else [])
        embedded = self._network.embed_tokens(token_ids)
        known = [its.states for its in rows if its.states is not None]
        states = torch.cat(known) if known else None
        if any(masks) and self._masks is not None:
            embedded = torch.cat((embedded, self._masks.embedded)).index_select(0, placed)
            if states is not None and self._masks.states is not None:
                states = torch.cat((states, self._masks.states.to(states.dtype))).index_select(0, placed)
        outputs: Tensor = self._network(embedded, states, prepared.positions, prepared.attend)
        return outputs

    def _in_one_go(self, outputs: Tensor, lasts: list[int], asked: Sequence[Committed]) -> list[Branch | None]:
        n_drafts = self._n_masks + 1
        [places] = upload_ids(outputs.device, [last + i for last in lasts for i in range(n_drafts)])
        logits = self._network.logits(outputs.index_select(0, places))
        wanted = [one.wanted for one in asked if one.wanted is not None]
        return block_trees(logits.view(len(lasts), n_drafts, -1), wanted, self._network.spec.method, self._vocabulary)

    def _levels(self, outputs: Tensor, lasts: list[int], asked: Sequence[Committed]) -> list[Branch | None]:
        [places] = upload_ids(outputs.device, lasts)
        roots = outputs.index_select(0, places)
        return grow_levels(
            self._score, self._run, roots, asked, self._vocabulary, self._depth, self._beam, self._network.spec.method
        )

    def _score(self, outputs: Tensor) -> Tensor:
        return self._network.logits(outputs)

    def _run(self, level: Level, parents: Tensor) -> Tensor:
        """Outputs of a level's new rows; ``parents`` are their parents' outputs."""
        prepared = self._cache.prepare(level.shares, level.n_new)
        [tokens] = upload_ids(prepared.positions.device, level.tokens)
        states = self._network.next_states(parents)
        outputs: Tensor = self._network(self._network.embed_tokens(tokens), states, prepared.positions, prepared.attend)
        return outputs


def _order(n_real: Sequence[int], n_masks: Sequence[int]) -> list[int]:
    """Where each row is found among all real rows and the masks behind them."""
    order, first, masks_at = list[int](), 0, sum(n_real)
    for real, masks in zip(n_real, n_masks, strict=True):
        order += [*range(first, first + real), *range(masks_at, masks_at + masks)]
        first += real
    return order


def _last_rows(shares: Sequence[Share], masks: Sequence[int], is_asked: Sequence[bool]) -> list[int]:
    """The last real row of every sequence that drafts."""
    lasts, end = list[int](), 0
    for share, n_masks, asked in zip(shares, masks, is_asked, strict=True):
        end += len(share.depths)
        if asked:
            lasts.append(end - n_masks - 1)
    return lasts
