"""Random texts with states of a tiny drafter's target, as training reads them."""

from __future__ import annotations

import torch
from torch import Tensor

from app.training.texts import Roots, Texts
from engine.drafter.spec import DrafterSpec

LENGTH = 10
WRITTEN = ((3, 10), (4, 8))  # of each text, the tokens that the target wrote; padding follows
ROOTS = ((6, 2, 4, 8), (3, 6, 5, 1))


def some_texts(spec: DrafterSpec) -> Texts:
    """Two texts, prompts first; the second is padded."""
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(0, spec.vocab_size, (2, LENGTH), generator=generator)
    final, tapped = (
        torch.randn(2, LENGTH, width, generator=generator, dtype=torch.float64)
        for width in (spec.target_hidden_size, spec.target_hidden_size * max(1, len(spec.taps)))
    )
    weights = torch.zeros(2, LENGTH, dtype=torch.float64)
    for text, (begin, end) in enumerate(WRITTEN):
        weights[text, begin:end] = 1
    return Texts(tokens, weights, final, tapped if spec.taps else None)


def some_roots() -> Roots:
    """The last one of the second text does not count."""
    return Roots(torch.tensor(ROOTS), torch.tensor([[True] * 4, [True, True, True, False]]))


def ids_of(spec: DrafterSpec) -> Tensor | None:
    """The target's ids of a smaller draft vocabulary, in no order."""
    if spec.draft_vocab_size == spec.vocab_size:
        return None
    return torch.randperm(spec.vocab_size, generator=torch.Generator().manual_seed(3))[: spec.draft_vocab_size]
