"""The labels of drafts: the text's tokens, or the target's distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from app.training.texts import PaddedTexts, take
from engine.drafter.networks.base import TargetParts

LabelKind = Literal["soft", "hard"]  # the target's distribution; the text's token


@dataclass(frozen=True, slots=True)
class DraftLabels:
    """Labels of drafts ``[b, c]``, in the drafter's token ids."""

    token: Tensor  # int64 [b, c], the text's; -1: the drafter lacks it
    chances: Tensor | None  # [b, c, draft_vocab_size], the target's, not normalised over a draft vocabulary; None: hard
    weights: Tensor  # [b, c]

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Nats ``[b, c]``; the target's distribution is normalised over the draft vocabulary."""
        found = logits.log_softmax(-1)
        if self.chances is None:
            return -found.gather(-1, self.token.clamp(min=0)[..., None]).squeeze(-1)
        normal = self.chances / self.chances.sum(-1, keepdim=True).clamp(min=torch.finfo(found.dtype).tiny)
        return -(normal * found).sum(-1)

    def overlap(self, chances: Tensor) -> Tensor:
        """Chance ``[b, c]`` that rejection sampling accepts drafts from the drafter's ``chances`` ``[b, c, vocab]``."""
        if self.chances is None:
            known = chances.gather(-1, self.token.clamp(min=0)[..., None]).squeeze(-1)
            return torch.where(self.token < 0, 0.0, known)
        return torch.minimum(self.chances, chances).sum(-1)


@dataclass(frozen=True, slots=True)
class Labeller:
    """Looks up the labels of drafts."""

    target: TargetParts  # its head turns final states into distributions
    kind: LabelKind
    draft_ids: Tensor | None = None  # int64 [draft_vocab_size], the target's id of each drafter token; None: the same
    temperature: float = 1.0
    counts_unknown: bool = False  # whether a draft counts if the drafter lacks its likeliest token

    @torch.no_grad()
    def label(self, texts: PaddedTexts, at: Tensor, counted: Tensor) -> DraftLabels:
        """The labels at positions ``[b, c]``; positions after the end have weight 0."""
        weights = take(texts.weights, at) * counted * (at < texts.tokens.shape[1])
        token, chances = take(texts.tokens, at), None
        best = token
        if self.kind == "soft":
            logits = self.target.head(take(texts.final, at - 1))
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
            chances, best = logits.softmax(-1), logits.argmax(-1)
        if self.draft_ids is None:
            return DraftLabels(token, chances, weights)
        if not self.counts_unknown:
            weights = weights * (_draft_id(best, self.draft_ids) >= 0)
        chances = None if chances is None else chances[..., self.draft_ids]
        return DraftLabels(_draft_id(token, self.draft_ids), chances, weights)


def _draft_id(tokens: Tensor, draft_ids: Tensor) -> Tensor:
    """The drafter's ids of the target's ``tokens``; -1 where it has none."""
    matches = tokens[..., None] == draft_ids
    return torch.where(matches.any(-1), matches.int().argmax(-1), -1)
