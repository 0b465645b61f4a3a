"""What the target makes of texts, captured when they are trained on: states on disk would be larger than any text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from app.training.data.examples import Example
from app.training.texts import PaddedTexts
from engine.drafter.networks.base import TargetParts
from engine.target_model.whole_texts import WholeTexts


class Capture:
    """Reads batches of texts. States are float32, whatever the target computes in.

    Args:
        taps: whose outputs drafters read, besides the final norm's.
    """

    def __init__(self, model: WholeTexts, taps: Sequence[int]) -> None:
        self._model, self._taps = model, taps

    @torch.no_grad()
    def read(self, examples: Sequence[Example]) -> PaddedTexts:
        """Texts, padded to the longest, on the target's last device."""
        last = self._model.shards[-1]
        tokens, weights = padded(examples)
        hidden, tapped = self._model.states(tokens, self._taps)
        joined = torch.cat(tapped, dim=-1).float() if tapped else None
        return PaddedTexts(tokens.to(last.device), weights.to(last.device), last.norm(hidden).float(), joined)


def padded(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Token ids int64 and weights float32, both ``[n, longest]``."""
    length = max(len(example.tokens) for example in examples)
    tokens, weights = torch.zeros(len(examples), length, dtype=torch.int64), torch.zeros(len(examples), length)
    for row, counted, example in zip(tokens, weights, examples, strict=True):
        row[: len(example.tokens)] = torch.tensor(example.tokens)
        counted[example.first : len(example.tokens)] = 1
    return tokens, weights


def target_parts(model: WholeTexts) -> TargetParts:
    """The target's ends as drafters in float32 use them."""
    last = model.shards[-1]

    def embed(tokens: Tensor) -> Tensor:
        return model.embed(tokens).to(last.device).float()

    def head(normed: Tensor) -> Tensor:
        return last.head(normed.to(last.dtype).contiguous())  # of a part of its rows, it would be a product per text

    return TargetParts(embed, head)
