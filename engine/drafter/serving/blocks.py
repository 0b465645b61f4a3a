"""Drafting with one block of slots beside the target's states (DFlash), and with heads on its last state (Medusa)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from engine.device import fetch
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.medusa import Medusa
from engine.drafter.serving.base import upload_ids
from engine.drafter.serving.committed import Committed
from engine.drafter.serving.forwards import Forwards
from engine.drafter.serving.rows import DraftRows
from engine.drafter.trees.blocks import block_trees
from engine.drafter.trees.choice import DraftVocabulary
from engine.drafter.trees.rounds import BlockAsk
from engine.protocol import Branch
from engine.tree import FloatArray


class BlockDrafting:
    """The DFlash family. Implements ``DraftingNetwork``.

    Args:
        network: with its weights.
        forwards: of its layers; committed positions have keys and values in its cache, but are no rows.
        vocabulary: of its head; None: the target's.
    """

    def __init__(self, network: DFlash, forwards: Forwards, vocabulary: DraftVocabulary | None) -> None:
        self._network, self._forwards, self._vocabulary = network, forwards, vocabulary
        assert network.spec.n_drafts is not None, "a drafter of blocks was trained for a number of drafts"
        self._n_drafts = network.spec.n_drafts

    def draft(self, committed: Sequence[Committed]) -> list[Branch | None]:
        """Keep what layers make of the committed positions, and draft behind the drawn tokens."""
        self.learn(committed)
        return self._block(committed)

    def learn(self, committed: Sequence[Committed]) -> None:
        """Keep what layers make of the committed positions."""
        rows = [DraftRows(one.sequence.table, one.first, len(one.tokens)) for one in committed]
        self._forwards.keep(rows, torch.cat([one.states for one in committed]))
        for one in committed:
            one.sequence.n_rows = one.first + len(one.tokens)

    def _block(self, asked: Sequence[Committed]) -> list[Branch | None]:
        [anchors] = upload_ids(asked[0].states.device, [one.drawn for one in asked if one.drawn is not None])
        embedded = self._network.embed_block(anchors, self._n_drafts)
        n_slots = embedded.shape[1]
        is_block = not self._network.spec.causal_block
        rows = [DraftRows(one.sequence.table, one.sequence.n_rows, n_slots, is_block=is_block) for one in asked]
        outputs = self._forwards.run(rows, [embedded.flatten(0, 1)])
        outputs = self._network.select_drafting(outputs.view(len(asked), n_slots, -1))
        return self._trees(outputs, anchors, _wanted(asked))

    def _trees(self, outputs: Tensor, anchors: Tensor, wanted: list[BlockAsk]) -> list[Branch | None]:
        """Trees of slots' outputs ``[n_seq, n_drafts, hidden]`` behind anchors, int64 ``[n_seq]``."""
        network = self._network
        logits = network.logits(outputs)
        condition = partial(_markov, network, outputs) if network.spec.markov_rank else None
        confidence = self._confidence(outputs, logits, anchors) if network.spec.has_confidence else None
        return block_trees(logits, wanted, network.spec.method, self._vocabulary, condition, confidence)

    def _confidence(self, outputs: Tensor, logits: Tensor, anchors: Tensor) -> FloatArray:
        """How likely each slot's draft is accepted, ``[n_seq, n_drafts]``, as if the best tokens were drafted."""
        best = logits[:, :-1].argmax(-1)
        if self._vocabulary is not None:
            best = self._vocabulary.ids[best]
        chances = self._network.estimate_acceptance(outputs, torch.cat((anchors.unsqueeze(1), best), dim=1))
        return fetch([chances.float()])[0]


class HeadDrafting:
    """Medusa. Implements ``DraftingNetwork``.

    Args:
        network: with its weights.
    """

    def __init__(self, network: Medusa) -> None:
        self._network = network

    def learn(self, committed: Sequence[Committed]) -> None:
        """Nothing is kept."""

    def draft(self, committed: Sequence[Committed]) -> list[Branch | None]:
        """Draft from the last states."""
        logits = self._network(torch.stack([one.states[-1] for one in committed]))
        return block_trees(logits, _wanted(committed), self._network.spec.method, None)


def _markov(
    network: DFlash, outputs: Tensor, parents: Tensor, sequences: Tensor, depth: int, states: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What the Markov head adds; a ``Condition`` but for its first two arguments."""
    added: tuple[Tensor, Tensor | None] = network.markov(parents, outputs[sequences, depth], states)
    return added


def _wanted(asked: Sequence[Committed]) -> list[BlockAsk]:
    return [one.wanted for one in asked if one.wanted is not None]
