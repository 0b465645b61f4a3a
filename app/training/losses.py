"""The loss of a drafter on a batch of texts, as its method was published, and the labels of its drafts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from app.training.batches import PaddedTexts, Roots, choose_roots, take
from app.training.drafts import DraftedDepth, draft
from engine.drafter.networks.build import AnyNetwork
from engine.drafter.spec import DrafterSpec

LabelKind = Literal["soft", "hard"]  # the target's distribution; the text's token
EAGLE3_STEPS = 7
BLOCK_SCALE = 7.0  # gamma of DFlash: slots over which a draft's weight falls to 1 / e


@dataclass(frozen=True, slots=True)
class DraftLabels:
    """Labels of drafts ``[b, c]``, in the drafter's token ids."""

    token: Tensor  # int64 [b, c], the text's; -1: the drafter lacks it
    chances: Tensor | None  # [b, c, draft_vocab_size], the target's; None: hard
    weights: Tensor  # [b, c]

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Nats ``[b, c]``."""
        found = logits.log_softmax(-1)
        if self.chances is None:
            return -found.gather(-1, self.token.clamp(min=0)[..., None]).squeeze(-1)
        return -(self.chances * found).sum(-1)

    def overlap(self, chances: Tensor) -> Tensor:
        """Chance ``[b, c]`` that rejection sampling accepts drafts from the drafter's ``chances`` ``[b, c, vocab]``."""
        if self.chances is None:
            known = chances.gather(-1, self.token.clamp(min=0)[..., None]).squeeze(-1)
            return torch.where(self.token < 0, 0.0, known)
        return torch.minimum(self.chances, chances).sum(-1)


@dataclass(frozen=True, slots=True)
class Labeller:
    """Looks up the labels of drafts."""

    head: Callable[[Tensor], Tensor]  # of the target, over the drafter's vocabulary or, if ``is_whole``, over its own
    kind: LabelKind
    draft_ids: Tensor | None = None  # int64 [draft_vocab_size], the target's id of each drafter token; None: the same
    temperature: float = 1.0  # of the target's distribution
    is_whole: bool = False  # chances are not normalised over the draft vocabulary; drafts whose label it lacks count

    @torch.no_grad()
    def label(self, texts: PaddedTexts, at: Tensor, counted: Tensor) -> DraftLabels:
        """The labels at positions ``[b, c]``; positions after the end have weight 0."""
        weights = take(texts.weights, at) * counted * (at < texts.tokens.shape[1])
        token, chances, ids = take(texts.tokens, at), None, self.draft_ids
        if self.kind == "soft":
            logits = self.head(take(texts.final, at - 1))
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
            chances = logits.softmax(-1)
        if ids is None:
            return DraftLabels(token, chances, weights)
        place = torch.searchsorted(ids, token).clamp(max=len(ids) - 1)  # draft ids ascend
        token = torch.where(ids[place] == token, place, -1)
        if not self.is_whole:
            return DraftLabels(token, chances, weights * (token >= 0))
        return DraftLabels(token, None if chances is None else chances[..., ids], weights)


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The loss: the sum over depths d, from 0, of ``first * decay ** d`` times the mean of the weighted terms."""

    n_depths: int  # drafts of each root
    cross_entropy: float = 1.0  # weights of the terms, in nats
    regression: float = 0.0  # of smooth L1 between the output and the target's final state, mean over coordinates
    distance: float = 0.0  # of the L1 distance between the drafter's distribution and the target's
    confidence: float = 0.0  # of binary cross-entropy between the estimated and the actual chance of acceptance
    first: float = 1.0
    decay: float = 1.0
    noise: float = 0.0  # uniform noise of at most this size on the states that are read
    labels: LabelKind = "soft"
    keep: float = 1.0  # share of the groups at a depth that reach the next one
    keep_at_least: float = 0.0  # share of the groups that reach every depth

    def counts(self, n_roots: int) -> list[int]:
        """How many of ``n_roots`` roots reach each depth, at least one."""
        shares = (max(self.keep**depth, self.keep_at_least) for depth in range(self.n_depths))
        return [max(1, math.ceil(share * n_roots)) for share in shares]


def published(spec: DrafterSpec) -> LossSettings:
    """The loss of the method's paper and its authors' code; docs/how-to/train-a-drafter.md has a table and the papers.

    ParallelSpec gives no weights of depths or of cross-entropy: here they are Medusa's and EAGLE's.
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
    if spec.method == "dflash":  # with a causal block JetSpec, with a Markov head DSpark
        decay, confidence = math.exp(-1 / BLOCK_SCALE), float(spec.has_confidence)
        if spec.markov_rank:
            return LossSettings(n_drafts, cross_entropy=0.1, distance=0.9, confidence=confidence, decay=decay)
        labels: LabelKind = "soft" if spec.causal_block else "hard"
        return LossSettings(n_drafts, decay=decay, confidence=confidence, labels=labels)
    if spec.generation == 3:
        return LossSettings(EAGLE3_STEPS, decay=0.8)
    return LossSettings(1, cross_entropy=0.1, regression=1.0, noise=0.1)


@dataclass(frozen=True, slots=True)
class DraftLoss:
    """Computes a drafter's loss."""

    network: AnyNetwork  # its ``target`` scores the drafter's vocabulary
    settings: LossSettings
    n_roots: int = 64  # of each text, drawn anew for each batch
    draft_ids: Tensor | None = None  # as ``Labeller`` takes them

    def __call__(self, texts: PaddedTexts, generator: torch.Generator | None = None) -> Tensor:
        """The loss, a scalar in nats; roots and noise are drawn with ``generator`` (on the CPU)."""
        return self.at(texts, choose_roots(texts, self.n_roots, generator), generator)

    def at(self, texts: PaddedTexts, roots: Roots, generator: torch.Generator | None = None) -> Tensor:
        settings, states = self.settings, texts.states_for(self.network.spec)
        if settings.noise:
            drawn = torch.rand(states.shape, generator=generator, dtype=states.dtype)
            states = states + ((2 * drawn - 1) * settings.noise).to(states.device)
        drafted = draft(self.network, texts.tokens, states, roots, settings.counts(roots.at.shape[1]))
        means = (settings.decay**depth * self._mean(texts, roots, depth, one) for depth, one in enumerate(drafted))
        return settings.first * torch.stack(list(means)).sum()

    def _mean(self, texts: PaddedTexts, roots: Roots, depth: int, drafts: DraftedDepth) -> Tensor:
        """The weighted mean of the terms over a depth's drafts; 0 if none counts."""
        settings, n_roots = self.settings, drafts.logits.shape[1]
        at = roots.at[:, :n_roots] + 1 + depth  # may lie after the ends of texts
        labeller = Labeller(self.network.target.head, settings.labels, self.draft_ids)
        labels = labeller.label(texts, at, roots.counted[:, :n_roots])
        each = settings.cross_entropy * labels.cross_entropy(drafts.logits)
        if settings.distance or settings.confidence:
            overlap = labels.overlap(drafts.logits.softmax(-1))
            each = each + settings.distance * 2 * (1 - overlap)  # both distributions sum to one
            if settings.confidence:
                assert drafts.chances is not None
                each = each + settings.confidence * _confidence_loss(drafts.chances, overlap.detach())
        if settings.regression:
            assert drafts.states is not None
            right = take(texts.final, at - 1)
            each = each + settings.regression * F.smooth_l1_loss(drafts.states, right, reduction="none").mean(-1)
        return (each * labels.weights).sum() / labels.weights.sum().clamp(min=1e-9)


def _confidence_loss(estimated: Tensor, actual: Tensor) -> Tensor:
    """Binary cross-entropy in nats; PyTorch's own does not run in mixed precision."""
    estimated = estimated.clamp(1e-7, 1 - 1e-7)
    return -(actual * estimated.log() + (1 - actual) * torch.log1p(-estimated))
