"""Drafts by rows of a state and the token after it.

EAGLE runs a forward pass a depth, ParallelSpec and P-EAGLE one for all depths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.serving.forwards import Forwards
from engine.drafter.serving.rows import (
    CommittedTokens,
    DraftRows,
    NewRows,
    take_pair_rows,
    take_token_rows,
    upload_ids,
)
from engine.drafter.settings import DrafterSettings
from engine.drafter.trees.blocks import draft_blocks
from engine.drafter.trees.choice import Choice, DraftVocabulary, choose_tokens
from engine.drafter.trees.draft_tree import TreeLevel, grow_trees
from engine.drafter.trees.growth import start_draft
from engine.protocol import Branch
from engine.tree import ROOT


class PairDrafting:
    """Drafts of EAGLE, ParallelSpec and P-EAGLE. Implements ``DraftNetwork``.

    Args:
        network: with its weights.
        forwards: runs its layers.
        vocabulary: of its head; None: the target's.
        settings: depth and beam of EAGLE's trees.
    """

    def __init__(
        self,
        network: PairNetwork,
        forwards: Forwards,
        vocabulary: DraftVocabulary | None,
        settings: DrafterSettings,
    ) -> None:
        self._network, self._forwards, self._vocabulary, self._settings = network, forwards, vocabulary, settings
        self._device, self._source = next(network.parameters()).device, network.spec.method
        self._take_rows = take_pair_rows if network.spec.reads_states else take_token_rows
        # Rows after the last real one, which draft the further tokens of the same forward pass.
        n_drafts = None if network.spec.method == "eagle" else network.spec.n_drafts
        self._n_masks = 0 if n_drafts is None else n_drafts - 1
        self._masks = None if n_drafts is None else network.mask_rows(self._n_masks)

    def learn(self, committed: Sequence[CommittedTokens]) -> None:
        rows = [self._take_rows(one) for one in committed]
        some = [(one, its) for one, its in zip(committed, rows, strict=True) if its.tokens]
        if some:
            self._forward([one for one, _ in some], [its for _, its in some], 0)

    def draft(self, committed: Sequence[CommittedTokens]) -> list[Branch | None]:
        rows = [self._take_rows(one) for one in committed]
        outputs = self._forward(committed, rows, self._n_masks)
        ends = np.cumsum([len(one.tokens) + self._n_masks for one in rows])
        n_drafts = self._n_masks + 1
        [drafting] = upload_ids(outputs.device, (ends[:, None] + np.arange(-n_drafts, 0)).ravel().tolist())
        outputs = outputs.index_select(0, drafting)
        if self._masks is None:
            return self._draft_by_depth(outputs, committed)
        logits = self._network.logits(outputs).view(len(committed), n_drafts, -1)
        requests = [one.request for one in committed if one.request is not None]
        return draft_blocks(logits, requests, self._source, self._vocabulary)

    def _forward(self, committed: Sequence[CommittedTokens], rows: Sequence[NewRows], n_masks: int) -> Tensor:
        """Return outputs ``[n, hidden]`` of all sequences' rows, at least one each, with masks after the real ones."""
        tokens = [token for one in rows for token in one.tokens]
        order = _order_with_masks([len(one.tokens) for one in rows], n_masks) if n_masks else []
        token_ids, places = upload_ids(self._device, tokens, order)
        embedded = self._network.embed_tokens(token_ids)
        known = [one.states for one in rows if one.states is not None]
        states = torch.cat(known) if known else None
        if n_masks and self._masks is not None:
            mask_embeddings, mask_states = self._masks
            embedded = torch.cat((embedded, mask_embeddings)).index_select(0, places)
            if states is not None and mask_states is not None:
                states = torch.cat((states, mask_states.to(states.dtype))).index_select(0, places)
        of_all = [
            DraftRows(one.sequence.table, its.first, len(its.tokens) + n_masks)
            for one, its in zip(committed, rows, strict=True)
        ]
        return self._forwards.run(of_all, [embedded] if states is None else [embedded, states])

    def _draft_by_depth(self, roots: Tensor, committed: Sequence[CommittedTokens]) -> list[Branch | None]:
        """Return drafts after the outputs ``[n_seq, hidden]`` of the last committed rows.

        The row of a node has the node's token, and its parent's output for a state.
        """
        network, settings, node_rows, outputs = self._network, self._settings, _NodeRows(committed), roots
        trees = {
            i: start_draft(one.request, settings.depth, settings.beam)
            for i, one in enumerate(committed)
            if one.request is not None
        }

        def choose_level(level: TreeLevel) -> list[Choice]:
            nonlocal outputs
            if level.depth > 0:
                tokens, parents = upload_ids(outputs.device, level.tokens, level.parents)
                states = network.next_states(outputs.index_select(0, parents))
                outputs = self._forwards.run(node_rows.add(level), [network.embed_tokens(tokens), states])
            return choose_tokens(network.logits(outputs), level.choice_requests(), vocabulary=self._vocabulary)

        grow_trees(trees, choose_level)
        return [tree.branch(self._source) for tree in trees.values()]


class _NodeRows:
    """Rows of expanded nodes, after the committed rows of each sequence; the draft drops them at its end."""

    def __init__(self, committed: Sequence[CommittedTokens]) -> None:
        self._sequences = [one.sequence for one in committed]
        self._parents: list[list[int]] = [[] for _ in committed]  # of every sequence's rows
        self._level = [ROOT] * len(committed)  # the rows of the last level's nodes, each in its sequence

    def add(self, level: TreeLevel) -> list[DraftRows]:
        """Add a row per node of the level; return all rows of its sequences."""
        rows = list[int]()
        for owner, above in zip(level.owners, level.parents, strict=True):
            rows.append(len(self._parents[owner]))
            self._parents[owner].append(self._level[above])
        self._level = rows
        found = []
        for i, tree in level.trees.items():
            sequence, parents = self._sequences[i], [*self._parents[i]]
            n_run = len(parents) - len(tree.expanded)
            found.append(DraftRows(sequence.table, sequence.n_rows, len(parents), parents, n_run))
        return found


def _order_with_masks(n_real: Sequence[int], n_masks: int) -> list[int]:
    """Return the place of each row among all real rows and the masks, which follow every sequence's real rows."""
    order, first, masks_at = list[int](), 0, sum(n_real)
    for real in n_real:
        order += [*range(first, first + real), *range(masks_at, masks_at + n_masks)]
        first += real
    return order
