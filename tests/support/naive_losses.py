"""Losses and acceptance of drafters from their definition: root by root, draft by draft, whole texts recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.training.settings import LossSettings
from app.training.texts import Roots, Texts
from tests.support.naive_drafter import NaiveDrafter
from tests.support.tiny_drafters import TinyDrafter


@dataclass(frozen=True, slots=True)
class Draft:
    """One that counts."""

    text: int
    root: int
    depth: int
    at: int  # position
    q: np.ndarray  # [draft_vocab_size]
    scores: np.ndarray
    chance: float | None  # estimated, of acceptance


def drafts_of(drafter: TinyDrafter, texts: Texts, roots: Roots, n_depths: int) -> Iterator[tuple[int, Draft]]:
    """Drafts of all roots that count, of tokens that the target wrote, with their roots' places."""
    naive, spec = NaiveDrafter(drafter), drafter.spec
    states = texts.tapped if spec.taps else texts.final
    assert states is not None
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
                    yield place, Draft(text, root, depth, at, softmax(scored[depth]), scored[depth], chance)


def naive_loss(
    drafter: TinyDrafter, settings: LossSettings, texts: Texts, roots: Roots, draft_ids: list[int] | None
) -> float:
    sums, weights = [0.0] * settings.n_depths, [0.0] * settings.n_depths
    n_roots = roots.at.shape[1]
    for place, draft in drafts_of(drafter, texts, roots, settings.n_depths):
        share = max(settings.keep**draft.depth, settings.keep_at_least)
        if place >= max(1, math.ceil(share * n_roots)):
            continue
        target = target_chances(drafter, texts, draft)
        token = int(texts.tokens[draft.text, draft.at])
        ids = list(range(len(target))) if draft_ids is None else draft_ids
        best = int(target.argmax()) if settings.labels == "soft" else token
        if best not in ids:
            continue
        p = target[ids] if settings.labels == "soft" else np.eye(len(ids))[ids.index(token)]
        overlap = float(np.minimum(p, draft.q).sum())
        loss = -settings.cross_entropy * float((p / p.sum() * np.log(draft.q)).sum())
        loss += settings.distance * 2 * (1 - overlap)
        if settings.confidence:
            guess = draft.chance
            loss -= settings.confidence * (overlap * math.log(guess) + (1 - overlap) * math.log(1 - guess))
        if settings.regression:
            # A head with more rows than columns tells the output it was applied to.
            output = np.linalg.lstsq(drafter.head, draft.scores)[0]
            off = np.abs(output - texts.final[draft.text, draft.at - 1].numpy())
            loss += settings.regression * float(np.where(off < 1, off**2 / 2, off - 0.5).mean())
        weight = float(texts.weights[draft.text, draft.at])
        sums[draft.depth] += weight * loss
        weights[draft.depth] += weight
    means = (total / weight if weight else 0.0 for total, weight in zip(sums, weights, strict=True))
    return sum(settings.first * settings.decay**depth * mean for depth, mean in enumerate(means))


def target_chances(drafter: TinyDrafter, texts: Texts, draft: Draft) -> np.ndarray:
    return softmax(drafter.head @ texts.final[draft.text, draft.at - 1].numpy())


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()
