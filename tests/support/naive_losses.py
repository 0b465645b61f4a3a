"""Random texts, and losses of drafters from their definition: root by root, draft by draft, whole texts recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from app.training.batches import PaddedTexts, Roots
from app.training.losses import LossSettings
from engine.drafter.spec import DrafterSpec
from tests.support.naive_drafter import NaiveDrafter
from tests.support.tiny_drafters import TinyDrafter

LENGTH = 10
WRITTEN = ((3, 10), (4, 8))  # the tokens of each text that the target wrote; padding follows
ROOTS = ((6, 2, 4, 8), (3, 6, 5, 1))


def some_texts(spec: DrafterSpec) -> PaddedTexts:
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
    return PaddedTexts(tokens, weights, final, tapped if spec.taps else None)


def some_roots() -> Roots:
    """The last root of the second text does not count."""
    return Roots(torch.tensor(ROOTS), torch.tensor([[True] * 4, [True, True, True, False]]))


def ids_of(spec: DrafterSpec) -> Tensor | None:
    """Ascending target ids of a smaller draft vocabulary."""
    if spec.draft_vocab_size == spec.vocab_size:
        return None
    drawn = torch.randperm(spec.vocab_size, generator=torch.Generator().manual_seed(3))
    return drawn[: spec.draft_vocab_size].sort().values


@dataclass(frozen=True, slots=True)
class NaiveDraft:
    text: int
    root: int
    depth: int
    at: int  # position
    q: np.ndarray  # [draft_vocab_size]
    scores: np.ndarray
    chance: float | None  # estimated, of acceptance


def drafts_of(
    drafter: TinyDrafter, texts: PaddedTexts, roots: Roots, n_depths: int
) -> Iterator[tuple[int, NaiveDraft]]:
    """Drafts of tokens that the target wrote, of all roots that count, with the places of their roots."""
    naive, spec = NaiveDrafter(drafter), drafter.spec
    states = texts.states_for(spec)
    for text, tokens in enumerate(texts.tokens.tolist()):
        for place, root in enumerate(roots.at[text].tolist()):
            if not roots.counted[text, place]:
                continue
            read, known = tokens[: root + 1], states[text, :root].numpy()
            follow = tokens[root + 1 : root + n_depths]
            chain = [(depth - 1, token) for depth, token in enumerate(follow)]
            chances = None
            if spec.method == "medusa":
                scored = naive.medusa(known)
            elif spec.method == "eagle":
                scored = naive.eagle(read, known, chain)
            elif spec.method == "dflash":
                scored, chances = naive.dflash(read, known, chain[: spec.n_drafts - 1])
            else:
                scored = naive.parallel(read, known)
            for depth in range(n_depths):
                at = root + 1 + depth
                if at < len(tokens) and texts.weights[text, at] > 0:
                    chance = None if chances is None else float(chances[depth])
                    yield place, NaiveDraft(text, root, depth, at, softmax(scored[depth]), scored[depth], chance)


def naive_loss(
    drafter: TinyDrafter, settings: LossSettings, texts: PaddedTexts, roots: Roots, draft_ids: list[int] | None
) -> float:
    sums, weights = [0.0] * settings.n_depths, [0.0] * settings.n_depths
    n_roots = roots.at.shape[1]
    for place, draft in drafts_of(drafter, texts, roots, settings.n_depths):
        share = max(settings.keep**draft.depth, settings.keep_at_least)
        if place >= max(1, math.ceil(share * n_roots)):
            continue
        token = int(texts.tokens[draft.text, draft.at])
        ids = list(range(drafter.spec.vocab_size)) if draft_ids is None else draft_ids
        if token not in ids:
            continue
        known = softmax(drafter.head[ids] @ texts.final[draft.text, draft.at - 1].numpy())
        p = known if settings.labels == "soft" else np.eye(len(ids))[ids.index(token)]
        overlap = float(np.minimum(p, draft.q).sum())
        loss = -settings.cross_entropy * float((p * np.log(draft.q)).sum())
        loss += settings.distance * 2 * (1 - overlap)
        if settings.confidence:
            guess = draft.chance
            loss -= settings.confidence * (overlap * math.log(guess) + (1 - overlap) * math.log(1 - guess))
        if settings.regression:
            # The head has more rows than columns, so scores determine its input.
            output = np.linalg.lstsq(drafter.rows, draft.scores)[0]
            off = np.abs(output - texts.final[draft.text, draft.at - 1].numpy())
            loss += settings.regression * float(np.where(off < 1, off**2 / 2, off - 0.5).mean())
        weight = float(texts.weights[draft.text, draft.at])
        sums[draft.depth] += weight * loss
        weights[draft.depth] += weight
    means = (total / weight if weight else 0.0 for total, weight in zip(sums, weights, strict=True))
    return sum(settings.first * settings.decay**depth * mean for depth, mean in enumerate(means))


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()
