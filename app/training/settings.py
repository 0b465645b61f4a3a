"""What a drafter's training minimises, by method: terms, and what each depth counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError

Labels = Literal["soft", "hard"]

EAGLE3_STEPS = 7
BLOCK_SCALE = 7.0  # gamma of DFlash: slots over which a draft's weight falls to 1 / e


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Sum over depths d, from 0, of ``first * decay ** d`` times the terms' means over the drafts that count.

    Defaults of every method are those of ``published``; what a paper leaves open is said there.
    """

    n_depths: int  # drafts of every root
    cross_entropy: float = 1.0  # weights of the terms, in nats
    regression: float = 0.0  # of smooth L1 between the output and the target's final state, mean over coordinates
    distance: float = 0.0  # of the L1 distance between the drafter's distribution and the target's
    confidence: float = 0.0  # of binary cross-entropy between the estimated and the actual chance of acceptance
    first: float = 1.0
    decay: float = 1.0
    noise: float = 0.0  # states read are off by up to this much, uniformly, so that own errors do not surprise
    labels: Labels = "soft"  # the target's distribution, or the text's tokens
    keep: float = 1.0  # share of roots that reach one depth more than the one before
    keep_at_least: float = 0.0  # share of roots that reach every depth

    def __post_init__(self) -> None:
        if self.n_depths < 1:
            raise ConfigError(f"n_depths is {self.n_depths}: at least one token is drafted")
        for name in ("cross_entropy", "regression", "distance", "confidence", "noise"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: a weight is at least 0")
        for name in ("keep", "keep_at_least"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: a share lies between 0 and 1")

    def depth_weight(self, depth: int) -> float:
        """What drafts of this depth, from 0, count."""
        return self.first * self.decay**depth

    def counts(self, n_roots: int) -> list[int]:
        """How many of so many roots reach every depth; at least one does."""
        shares = (max(self.keep**depth, self.keep_at_least) for depth in range(self.n_depths))
        return [max(1, math.ceil(share * n_roots)) for share in shares]


def published(spec: DrafterSpec) -> LossSettings:
    """The method's loss as its paper and its authors' code have it.

    Medusa (arXiv 2401.10774): head k, from 1, counts .8 ** k; the text's tokens. ParallelSpec (arXiv 2410.05589) on
    Medusa: 1, then the same; on EAGLE the sum of EAGLE's losses; the text's tokens. It gives neither weights of depths
    nor that of cross-entropy: here they are Medusa's and EAGLE's. EAGLE 1 (arXiv 2401.15077): smooth L1 and .1 of
    cross-entropy, noise of .1; EAGLE 3 (arXiv 2503.01840): .8 ** d over 7 steps. P-EAGLE (arXiv 2602.01469): .7 of the
    roots go one depth further, .2 reach all. DFlash (arXiv 2602.06036): exp(-d / 7), the text's tokens; the target's
    distribution where the block is causal (JetSpec, arXiv 2606.18394). DSpark (arXiv 2607.05147): .1 of cross-entropy,
    .9 of the distance, and the confidence head's.
    """
    n_drafts = spec.n_drafts or 0
    if spec.method == "medusa":
        return LossSettings(spec.n_heads, first=0.8, decay=0.8, labels="hard")
    if spec.method == "parallelspec-medusa":
        return LossSettings(n_drafts, decay=0.8, labels="hard")
    if spec.method == "parallelspec-eagle":
        return LossSettings(n_drafts, cross_entropy=0.1, regression=1.0, labels="hard")
    if spec.method == "p-eagle":
        return LossSettings(n_drafts, keep=0.7, keep_at_least=0.2)
    if spec.method == "dflash":
        decay = math.exp(-1 / BLOCK_SCALE)
        told = 1.0 if spec.has_confidence else 0.0
        if spec.markov_rank:
            return LossSettings(n_drafts, cross_entropy=0.1, distance=0.9, confidence=told, decay=decay)
        labels: Labels = "soft" if spec.causal_block else "hard"
        return LossSettings(n_drafts, decay=decay, confidence=told, labels=labels)
    if spec.generation == 3:
        return LossSettings(EAGLE3_STEPS, decay=0.8)
    return LossSettings(1, cross_entropy=0.1, regression=1.0, noise=0.1)
