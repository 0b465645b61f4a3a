"""Batches of texts with the target's states, and the positions from which training drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.drafter.spec import DrafterSpec


@dataclass(frozen=True, slots=True)
class PaddedTexts:
    """Texts, padded at their ends to one length, all on one device."""

    tokens: Tensor  # int64 [b, n]
    weights: Tensor  # float [b, n], of each token in the loss: 1 if the target wrote it, 0 in prompts and padding
    final: Tensor  # [b, n, target_hidden], outputs of the final norm
    tapped: Tensor | None = None  # [b, n, n_taps * target_hidden], concatenated outputs of the tapped layers

    def states_for(self, spec: DrafterSpec) -> Tensor:
        """The states that the drafter reads."""
        if not spec.taps:
            return self.final
        assert self.tapped is not None, "the drafter's layers were not tapped"
        return self.tapped


@dataclass(frozen=True, slots=True)
class Roots:
    """The positions of last committed tokens; draft d of a root at position r, from 0, is of token r + 1 + d.

    The order of roots is random, with those that count first.
    """

    at: Tensor  # int64 [b, m], at least 1: a draft needs the state before its root
    counted: Tensor  # bool [b, m]; False: the text has fewer than m roots

    def drafted(self, depth: int, n_roots: int) -> Tensor:
        """Positions ``[b, n_roots]`` of the first roots' drafts; they may lie after the ends of the texts."""
        return self.at[:, :n_roots] + 1 + depth


def choose_roots(texts: PaddedTexts, n_roots: int, generator: torch.Generator | None = None) -> Roots:
    """At most ``n_roots`` different random roots of each text, among the positions whose next token counts."""
    eligible = torch.zeros_like(texts.weights, dtype=torch.bool)
    eligible[:, 1:-1] = texts.weights[:, 2:] > 0
    drawn = torch.rand(eligible.shape, generator=generator).to(eligible.device)
    n_roots = min(n_roots, max(1, int(eligible.sum(1).max())))
    order = drawn.masked_fill(~eligible, -1.0).topk(n_roots, dim=1).indices
    return Roots(order.clamp(min=1), eligible.gather(1, order))


def take(values: Tensor, at: Tensor) -> Tensor:
    """``values`` ``[b, n, ...]`` at positions ``[b, m]``; the last value for positions after the end."""
    at = at.clamp(max=values.shape[1] - 1)
    return values[torch.arange(len(values), device=at.device)[:, None], at]
