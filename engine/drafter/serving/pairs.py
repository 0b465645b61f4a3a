"""Drafting with rows of tokens beside states: ParallelSpec and P-EAGLE in one forward, EAGLE in one per depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.serving.base import upload_ids
from engine.drafter.serving.committed import Committed, CommittedRows, pair_rows, token_rows
from engine.drafter.serving.forwards import Forwards
from engine.drafter.serving.levels import grow_levels
from engine.drafter.serving.rows import DraftRows
from engine.drafter.trees.blocks import block_trees
from engine.drafter.trees.choice import DraftVocabulary
from engine.protocol import Branch


@dataclass(frozen=True, slots=True)
class _Masks:
    """Rows behind the last real one that draft further tokens of the same forward."""

    embedded: Tensor  # [n_masks, hidden]
    states: Tensor | None  # [n_masks, width]


class PairDrafting:
    """Rows i of token i + 1 and the state at i. Implements ``DraftingNetwork``.

    Args:
        network: with its weights.
        forwards: of its layers.
        vocabulary: of its head; None: the target's.
        depth: most tokens on a path, for a drafter that was not trained for a number.
        beam: nodes expanded at a depth, and children of each, for the same.
    """

    def __init__(
        self,
        network: PairNetwork,
        forwards: Forwards,
        vocabulary: DraftVocabulary | None,
        depth: int,
        beam: int,
    ) -> None:
        self._network, self._forwards, self._vocabulary = network, forwards, vocabulary
        self._depth, self._beam, self._device = depth, beam, next(network.parameters()).device
        self._reads_states = network.spec.reads_states
        n_drafts = network.spec.n_drafts if network.spec.method != "eagle" else None
        self._masks = None if n_drafts is None else _Masks(*network.mask_rows(n_drafts - 1))

    @property
    def _n_masks(self) -> int:
        return 0 if self._masks is None else len(self._masks.embedded)

    def learn(self, committed: Sequence[Committed]) -> None:
        """Write the rows that are complete now."""
        rows = [self._rows(one) for one in committed]
        some = [(one, its) for one, its in zip(committed, rows, strict=True) if its.tokens]
        if some:
            self._forward([one for one, _ in some], [its for _, its in some], 0)

    def draft(self, committed: Sequence[Committed]) -> list[Branch | None]:
        """Write the rows that are complete now, and draft behind the last ones."""
        rows = [self._rows(one) for one in committed]
        outputs = self._forward(committed, rows, self._n_masks)
        n_rows = np.array([len(its.tokens) for its in rows])
        lasts = (np.cumsum(n_rows + self._n_masks) - self._n_masks - 1).tolist()
        draft = self._levels if self._masks is None else self._in_one_go
        return draft(outputs, lasts, committed)

    def _rows(self, committed: Committed) -> CommittedRows:
        return pair_rows(committed) if self._reads_states else token_rows(committed)

    def _forward(self, committed: Sequence[Committed], rows: Sequence[CommittedRows], n_masks: int) -> Tensor:
        """Outputs ``[n_rows, hidden]`` of all sequences' rows, at least one each, with masks behind the real ones."""
        tokens = [token for its in rows for token in its.tokens]
        order = _order([len(its.tokens) for its in rows], n_masks) if n_masks else []
        token_ids, placed = upload_ids(self._device, tokens, order)
        embedded = self._network.embed_tokens(token_ids)
        known = [its.states for its in rows if its.states is not None]
        states = torch.cat(known) if known else None
        if n_masks and self._masks is not None:
            embedded = torch.cat((embedded, self._masks.embedded)).index_select(0, placed)
            if states is not None and self._masks.states is not None:
                states = torch.cat((states, self._masks.states.to(states.dtype))).index_select(0, placed)
        of_all = [
            DraftRows(one.sequence.table, its.first, len(its.tokens) + n_masks)
            for one, its in zip(committed, rows, strict=True)
        ]
        return self._forwards.run(of_all, [embedded] if states is None else [embedded, states])

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

    def _run(self, rows: list[DraftRows], tokens: Tensor, parents: Tensor) -> Tensor:
        """Outputs of a level's rows; ``parents`` are their parents' outputs."""
        return self._forwards.run(rows, [self._network.embed_tokens(tokens), self._network.next_states(parents)])


def _order(n_real: Sequence[int], n_masks: int) -> list[int]:
    """Where each row is found among all real rows and the masks, the same ones behind every sequence's."""
    order, first, masks_at = list[int](), 0, sum(n_real)
    for real in n_real:
        order += [*range(first, first + real), *range(masks_at, masks_at + n_masks)]
        first += real
    return order
