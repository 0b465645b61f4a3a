"""How far a drafter's drafts are accepted on texts that it was not trained on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from app.training.drafted import draft
from app.training.labels import Labeller
from app.training.texts import PaddedTexts, choose_roots
from engine.drafter.networks.build import AnyNetwork
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of chains of drafts along the texts."""

    n_roots: int
    by_depth: tuple[float, ...]  # chance that a draft is accepted where all before it were; 0 where none ever was
    expected: float  # drafts accepted at a root, out of ``len(by_depth)``; the target's own token comes on top


@dataclass(frozen=True, slots=True)
class Measured:
    """Two readings of one forward."""

    greedy: Acceptance  # a draft is accepted where the drafter's best token is the text's: for texts of temperature 0
    sampled: Acceptance  # a draft is accepted by chance, as in rejection sampling at the measure's temperature


@torch.no_grad()
def measure(
    network: AnyNetwork,
    batches: Iterable[PaddedTexts],
    n_depths: int,
    *,
    n_roots: int = 64,
    temperature: float = 1.0,
    draft_ids: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Measured:
    """Acceptance at roots all of whose drafted tokens the target wrote.

    Args:
        batches: held-out texts with final states.
        temperature: above 0, of both distributions.

    Raises:
        ConfigError: there is no text, or one without final states.
    """
    labeller = Labeller(network.target, "soft", draft_ids, temperature=temperature, outside_counts=True)
    matched: list[Tensor] = []  # of every batch [roots, n_depths]
    overlaps: list[Tensor] = []
    for texts in batches:
        roots = choose_roots(texts, n_roots, generator)
        counts = [roots.at.shape[1]] * n_depths
        whole = roots.counted
        found: list[tuple[Tensor, Tensor]] = []
        for depth, drafts in enumerate(draft(network, texts, roots, counts, None)):
            wanted = labeller.wanted(texts, roots.drafted(depth, counts[0]), roots.counted)
            whole = whole & (wanted.weights > 0)
            best = (drafts.logits.argmax(-1) == wanted.token).to(torch.float64)
            found.append((best, wanted.overlap((drafts.logits / temperature).softmax(-1)).to(torch.float64)))
        for kept, parts in zip((matched, overlaps), zip(*found, strict=True), strict=True):
            kept.append(torch.stack(parts, dim=-1)[whole])
    if not matched:
        raise ConfigError("batches is empty: acceptance is measured on at least one held-out text")
    return Measured(along(torch.cat(matched)), along(torch.cat(overlaps)))


def along(accepted: Tensor) -> Acceptance:
    """Acceptance along chains.

    Args:
        accepted: ``[roots, n_depths]``, each draft's chance where all before it were accepted.
    """
    reached = accepted.cumprod(-1)
    n_roots, totals = len(accepted), reached.sum(0)
    before = torch.cat((totals.new_full((1,), float(n_roots)), totals[:-1]))
    by_depth = torch.where(before > 0, totals / before.clamp(min=1e-12), 0.0)
    return Acceptance(n_roots, tuple(by_depth.tolist()), float(totals.sum()) / max(1, n_roots))
