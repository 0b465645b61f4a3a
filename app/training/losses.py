"""A drafter's loss on a batch of texts, as its method was published."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from app.training.drafted import DraftedDepth, draft, noise_like
from app.training.labels import DraftLabels, Labeller
from app.training.settings import LossSettings
from app.training.texts import PaddedTexts, Roots, choose_roots, take
from engine.drafter.networks.build import AnyNetwork
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError


class DraftLoss:
    """What a drafter is asked to minimise.

    Args:
        n_roots: places of every text that drafts begin at, drawn anew for every batch.
        draft_ids: int64 ``[draft_vocab_size]``, the target's id of every token of the drafter; None: they are the same.

    Raises:
        ConfigError: the settings want a term that the drafter has not.
    """

    def __init__(
        self, network: AnyNetwork, settings: LossSettings, *, n_roots: int = 64, draft_ids: Tensor | None = None
    ) -> None:
        spec = network.spec
        check_terms(spec, settings)
        if draft_ids is None and spec.draft_vocab_size != spec.vocab_size:
            raise ConfigError(f"draft_ids is None: the drafter has {spec.draft_vocab_size} of {spec.vocab_size} tokens")
        self.network, self.settings, self.n_roots = network, settings, n_roots
        self.labeller = Labeller(network.target, settings.labels, draft_ids)

    def __call__(self, texts: PaddedTexts, generator: torch.Generator | None = None) -> Tensor:
        """The loss, a scalar in nats, of roots and noise drawn with ``generator`` (on the CPU)."""
        return self.at(texts, choose_roots(texts, self.n_roots, generator), generator)

    def at(self, texts: PaddedTexts, roots: Roots, generator: torch.Generator | None = None) -> Tensor:
        """The loss of these roots."""
        settings = self.settings
        noise = noise_like(self._states(texts), settings.noise, generator) if settings.noise else None
        drafted = draft(self.network, texts, roots, settings.counts(roots.at.shape[1]), noise)
        total = drafted[0].logits.new_zeros(())
        for depth, drafts in enumerate(drafted):
            total = total + settings.depth_weight(depth) * self._mean(texts, roots, depth, drafts)
        return total

    def _states(self, texts: PaddedTexts) -> Tensor:
        return texts.known_tapped() if self.network.spec.taps else texts.known_final()

    def _mean(self, texts: PaddedTexts, roots: Roots, depth: int, drafts: DraftedDepth) -> Tensor:
        """The mean of a depth's drafts, 0 if none counts."""
        n_roots = drafts.logits.shape[1]
        at = roots.drafted(depth, n_roots)
        wanted = self.labeller.wanted(texts, at, roots.counted[:, :n_roots])
        each = self._terms(drafts, wanted)
        if self.settings.regression:
            assert drafts.states is not None
            right = take(texts.known_final(), at - 1)
            each = each + self.settings.regression * F.smooth_l1_loss(drafts.states, right, reduction="none").mean(-1)
        return (each * wanted.weights).sum() / wanted.weights.sum().clamp(min=1e-9)

    def _terms(self, drafts: DraftedDepth, wanted: DraftLabels) -> Tensor:
        """``[b, c]``: what compares distributions."""
        settings = self.settings
        each = settings.cross_entropy * wanted.cross_entropy(drafts.logits)
        if settings.distance or settings.confidence:
            overlap = wanted.overlap(drafts.logits.softmax(-1))
            # Both sum to one, so what they do not share is half of their distance.
            each = each + settings.distance * 2 * (1 - overlap)
            if settings.confidence:
                assert drafts.chances is not None
                each = each + settings.confidence * _confidence_loss(drafts.chances, overlap.detach())
        return each


def check_terms(spec: DrafterSpec, settings: LossSettings) -> None:
    """Raises ConfigError if the settings want a term that a drafter has not."""
    if settings.regression and (spec.method not in ("eagle", "parallelspec-eagle") or spec.generation != 1):
        raise ConfigError(f"regression is {settings.regression}: {spec.method} drafts no states")
    if settings.confidence and not spec.has_confidence:
        raise ConfigError(f"confidence is {settings.confidence}: the drafter has no such head (has_confidence)")
    if settings.keep != 1 and spec.method not in ("p-eagle", "parallelspec-medusa", "parallelspec-eagle"):
        raise ConfigError(f"keep is {settings.keep}: only groups of masks can stop early, {spec.method} has none")


def _confidence_loss(estimated: Tensor, actual: Tensor) -> Tensor:
    """Binary cross-entropy, nats; written out, since torch's own refuses to run in mixed precision."""
    estimated = estimated.clamp(1e-7, 1 - 1e-7)
    return -(actual * estimated.log() + (1 - actual) * torch.log1p(-estimated))
