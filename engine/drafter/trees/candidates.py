"""What a block's depths have to offer where every parent adds to their logits: the best tokens of each, as they are.

The condition is evaluated on these only: of 150,000 columns a row of 64 is left to rank. A token that only the
condition makes probable is missed, and probabilities are those among the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from engine.device import fetch
from engine.drafter.trees.choice import Ask, Choice, DraftVocabulary, add_noise, processed, rank, select, temperatures
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.upload import Upload

N_CANDIDATES = 64


class BlockCandidates:
    """Of every depth of some sequences of a block, which rank and do not draw.

    Args:
        logits: ``[n_seq, n_drafts, vocab]`` or ``[n_seq, n_drafts, D]`` fp32, of all sequences.
        whose: sequence -> its parameters, and the position of its first draft.
        vocabulary: that of ``block_trees``.
    """

    def __init__(
        self,
        logits: Tensor,
        whose: Mapping[int, tuple[SamplingParams, int]],
        vocabulary: DraftVocabulary | None,
    ) -> None:
        self._n_drafts = logits.shape[1]
        self._place = {seq: i * self._n_drafts for i, seq in enumerate(whose)}  # of a sequence's first row
        asks = [Ask(params, None, first + i) for params, first in whose.values() for i in range(self._n_drafts)]
        rows = select(logits, list(whose)).flatten(0, 1)
        biased = processed(rows, [_only_biased(ask) for ask in asks], vocabulary)
        noise = add_noise(torch.zeros_like(biased), asks, vocabulary)
        self._columns = torch.topk(biased + noise, min(N_CANDIDATES, biased.shape[-1]), dim=-1).indices
        self._logits = biased.gather(1, self._columns)
        self._noise = noise.gather(1, self._columns)
        ids = self._columns if vocabulary is None else vocabulary.ids[self._columns]
        self._ids = fetch([ids.int()])[0].tolist()

    def choose(self, seqs: Sequence[int], depth: int, added: Tensor | None, asks: Sequence[Ask]) -> list[Choice]:
        """Choices behind rows of one depth.

        Args:
            seqs: ``[m]``, whose rows they are.
            depth: from 0.
            added: ``[m, vocab]`` or ``[m, D]``, what the condition adds to the rows.
            asks: ``[m]``.
        """
        rows = [self._place[seq] + depth for seq in seqs]
        upload = Upload(self._logits.device)
        index = upload.add(rows)
        heats = upload.add(temperatures(asks), np.float32)
        upload.send()
        logits = self._logits[index.tensor]
        if added is not None:
            logits = logits + added.gather(1, self._columns[index.tensor])
        scores = process(logits, [_only_heated(ask.params) for ask in asks], [None] * len(asks))
        ranked = rank(scores * heats.tensor + self._noise[index.tensor], asks)
        return [
            Choice([self._ids[row][column] for column in choice.tokens], choice.scores)
            for row, choice in zip(rows, ranked, strict=True)
        ]


def _only_biased(ask: Ask) -> Ask:
    """Greedy: neither temperature nor truncation."""
    return Ask(structs.replace(ask.params, temperature=0.0), None, ask.position)


def _only_heated(params: SamplingParams) -> SamplingParams:
    """Without what is by id: columns are no ids here, and all of it was applied before the best were taken."""
    if not (params.logit_bias or params.allowed_ids or params.bad_words):
        return params
    return structs.replace(params, logit_bias={}, allowed_ids=(), bad_words=())
