"""What drafts should have been: the text's tokens, or the target's distribution at their place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from app.training.settings import Labels
from app.training.texts import PaddedTexts, take
from engine.drafter.networks.base import TargetParts


@dataclass(frozen=True, slots=True)
class DraftLabels:
    """Of drafts ``[b, c]``; tokens are the drafter's own ids."""

    token: Tensor  # int64 [b, c], the text's; -1: the drafter has no such token
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
        """Chance ``[b, c]`` that rejection sampling accepts: the sum of the smaller chance of every token.

        Args:
            chances: ``[b, c, draft_vocab_size]``, the drafter's.
        """
        if self.chances is None:
            known = chances.gather(-1, self.token.clamp(min=0)[..., None]).squeeze(-1)
            return torch.where(self.token < 0, 0.0, known)
        return torch.minimum(self.chances, chances).sum(-1)


class Labeller:
    """Looks up what drafts should have been.

    Args:
        target: whose head turns final states into its distribution.
        draft_ids: int64 ``[draft_vocab_size]``, the target's id of every token of the drafter; None: they are the same.
        outside_counts: a draft whose best token the drafter lacks counts nevertheless: it cannot be accepted.
    """

    def __init__(
        self,
        target: TargetParts,
        labels: Labels,
        draft_ids: Tensor | None = None,
        *,
        temperature: float = 1.0,
        outside_counts: bool = False,
    ) -> None:
        self._target, self._labels, self._draft_ids = target, labels, draft_ids
        self._temperature, self._outside_counts = temperature, outside_counts

    @torch.no_grad()
    def wanted(self, texts: PaddedTexts, at: Tensor, counted: Tensor) -> DraftLabels:
        """What stands at positions ``[b, c]``; those behind the end weigh nothing.

        Raises:
            ConfigError: labels are soft, and the texts come without final states.
        """
        weights = take(texts.weights, at) * counted * (at < texts.tokens.shape[1])
        token, chances = take(texts.tokens, at), None
        best = token
        if self._labels == "soft":
            logits = self._target.head(take(texts.known_final(), at - 1))
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self._temperature
            chances, best = logits.softmax(-1), logits.argmax(-1)
        if self._draft_ids is None:
            return DraftLabels(token, chances, weights)
        chances = None if chances is None else chances[..., self._draft_ids]
        if not self._outside_counts:
            weights = weights * (self._own_ids(best) >= 0)
        return DraftLabels(self._own_ids(token), chances, weights)

    def _own_ids(self, tokens: Tensor) -> Tensor:
        """The drafter's ids, -1 where it has none."""
        assert self._draft_ids is not None
        order = self._draft_ids.argsort()
        place = torch.searchsorted(self._draft_ids[order], tokens.contiguous()).clamp(max=len(order) - 1)
        found = order[place]
        return torch.where(self._draft_ids[found] == tokens, found, -1)
