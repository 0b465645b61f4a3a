"""Batches of texts with what the target computed on them, and the places in them that drafts are trained from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PaddedTexts:
    """Texts of one length, padded at their ends, all on one device."""

    tokens: Tensor  # int64 [b, n]
    weights: Tensor  # float [b, n], what a token counts: 1 where the target wrote it, 0 in prompts and padding
    final: Tensor | None  # [b, n, target_hidden], the final norm's outputs; None: labels can only be hard
    tapped: Tensor | None = None  # [b, n, n_taps * target_hidden], outputs of tapped layers side by side

    def known_final(self) -> Tensor:
        """Raises ConfigError where the final norm's outputs were not captured."""
        if self.final is None:
            raise ConfigError("the texts come without the final norm's outputs (final), which are needed")
        return self.final

    def known_tapped(self) -> Tensor:
        """Raises ConfigError where no layer was tapped."""
        if self.tapped is None:
            raise ConfigError("the texts come without tapped layers (tapped): this drafter reads them")
        return self.tapped


@dataclass(frozen=True, slots=True)
class Roots:
    """Last committed tokens from which training drafts, in an order without meaning, those that count first.

    Draft number d of a root at position r, from 0, is of token r + 1 + d.
    """

    at: Tensor  # int64 [b, m], from 1: a draft needs the state before its root
    counted: Tensor  # bool [b, m]; False: a text had fewer than m places

    def drafted(self, depth: int, n_roots: int) -> Tensor:
        """Positions ``[b, n_roots]`` of the first roots' drafts; they may lie behind the texts' ends."""
        return self.at[:, :n_roots] + 1 + depth


def choose_roots(texts: PaddedTexts, n_roots: int, generator: torch.Generator | None = None) -> Roots:
    """Up to ``n_roots`` places of every text, drawn without repetition from those whose next token counts; no more than
    the text with the most of them has."""
    eligible = torch.zeros_like(texts.weights, dtype=torch.bool)
    eligible[:, 1:-1] = texts.weights[:, 2:] > 0
    drawn = torch.rand(eligible.shape, generator=generator).to(eligible.device)
    n_roots = min(n_roots, max(1, int(eligible.sum(1).max())))
    order = drawn.masked_fill(~eligible, -1.0).topk(n_roots, dim=1).indices
    return Roots(order.clamp(min=1), eligible.gather(1, order))


def take(values: Tensor, at: Tensor) -> Tensor:
    """``values`` ``[b, n, ...]`` at positions ``[b, m]``; those behind the end give the last one."""
    at = at.clamp(max=values.shape[1] - 1)
    return values[torch.arange(len(values), device=at.device)[:, None], at]
