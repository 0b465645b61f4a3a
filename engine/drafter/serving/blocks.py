"""Drafts by a block of slots after the target's states (the DFlash family), or by heads on its last state (Medusa)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.device import fetch
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.medusa import Medusa
from engine.drafter.serving.forwards import Forwards
from engine.drafter.serving.rows import CommittedTokens, DraftRows, upload_ids
from engine.drafter.trees.blocks import draft_blocks
from engine.drafter.trees.choice import DraftVocabulary
from engine.protocol import Branch


class BlockDrafting:
    """Drafts of the DFlash family. Implements ``DraftNetwork``.

    Args:
        network: with its weights.
        forwards: of its layers; committed positions have keys and values in its cache, but are no rows.
        vocabulary: of its head; None: the target's.
    """

    def __init__(self, network: DFlash, forwards: Forwards, vocabulary: DraftVocabulary | None) -> None:
        self._network, self._forwards, self._vocabulary = network, forwards, vocabulary
        assert network.spec.n_drafts is not None, "a drafter of blocks was trained for a number of drafts"
        self._n_drafts = network.spec.n_drafts

    def learn(self, committed: Sequence[CommittedTokens]) -> None:
        rows = [DraftRows(one.sequence.table, one.first, len(one.tokens)) for one in committed]
        self._forwards.keep(rows, torch.cat([one.states for one in committed]))
        for one in committed:
            one.sequence.n_rows = one.first + len(one.tokens)

    def draft(self, committed: Sequence[CommittedTokens]) -> list[Branch | None]:
        self.learn(committed)
        network, spec = self._network, self._network.spec
        requests = [one.request for one in committed if one.request is not None]
        [anchors] = upload_ids(committed[0].states.device, [request.root for request in requests])
        embedded = network.embed_block(anchors, self._n_drafts)
        n_slots, is_block = embedded.shape[1], not spec.causal_block
        rows = [DraftRows(one.sequence.table, one.sequence.n_rows, n_slots, is_block=is_block) for one in committed]
        outputs = self._forwards.run(rows, [embedded.flatten(0, 1)])
        outputs = network.select_drafting(outputs.view(len(committed), n_slots, -1))
        logits = network.logits(outputs)

        def add_markov(
            parents: Tensor, sequences: Tensor, depth: int, states: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            added: tuple[Tensor, Tensor | None] = network.markov(parents, outputs[sequences, depth], states)
            return added

        confidence = None
        if spec.has_confidence:  # as if the best tokens were drafted
            best = logits[:, :-1].argmax(-1)
            best = best if self._vocabulary is None else self._vocabulary.ids[best]
            chances = network.estimate_acceptance(outputs, torch.cat((anchors.unsqueeze(1), best), dim=1))
            [confidence] = fetch([chances.float()])
        condition = add_markov if spec.markov_rank else None
        return draft_blocks(logits, requests, spec.method, self._vocabulary, condition, confidence)


class HeadDrafting:
    """Drafts of Medusa. Implements ``DraftNetwork``."""

    def __init__(self, network: Medusa, vocabulary: DraftVocabulary | None) -> None:
        self._network, self._vocabulary = network, vocabulary

    def learn(self, committed: Sequence[CommittedTokens]) -> None:
        """Do nothing: the heads read the last state alone."""

    def draft(self, committed: Sequence[CommittedTokens]) -> list[Branch | None]:
        logits = self._network(torch.stack([one.states[-1] for one in committed]))
        requests = [one.request for one in committed if one.request is not None]
        return draft_blocks(logits, requests, self._network.spec.method, self._vocabulary)
