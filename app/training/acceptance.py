"""Measures the acceptance of a drafter's drafts on held-out texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from app.reporting.report import bar
from app.training.batches import PaddedTexts, ReadTexts, choose_roots, in_batches
from app.training.drafts import draft
from app.training.examples import Example
from app.training.losses import Labeller
from engine.drafter.networks.build import AnyNetwork

EAGLE1_DEPTHS = 5  # measured depths of a drafter that is trained on one step


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance of chains of drafts."""

    n_roots: int
    by_depth: tuple[float, ...]  # chance of acceptance given that all earlier drafts were accepted; 0 if none ever was
    expected: float  # accepted drafts of a chain of ``len(by_depth)``, without the target's own token


def measure_held_out(
    network: AnyNetwork,
    held_out: Sequence[Example],
    read: ReadTexts,
    label: Callable[..., Labeller],
    n_depths: int,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Acceptance of greedy and of sampled answers as JSON values; None where no answer is of that kind.

    The key ``tau`` is tokens per target forward pass, the target's own token included. ``label`` makes labels of a
    temperature over the whole vocabulary.
    """
    found: dict[str, Any] = {"temperature": arguments.temperature, "greedy": None, "sampled": None}
    for kind, temperature in (("greedy", 0.0), ("sampled", arguments.temperature or 1.0)):
        examples = [example for example in held_out if (example.temperature == 0) == (kind == "greedy")]
        # Sources are hashes: the first ones are a random sample that changes little with more questions.
        sample = sorted(examples, key=lambda example: example.source)[: arguments.measured]
        if not sample:
            continue
        batches, n_batches = in_batches(read, sample, arguments.batch), -(-len(sample) // arguments.batch)
        acceptance = measure_acceptance(
            network,
            bar(f"measure {kind}", n_batches, "batch", leave=False, iterable=batches),
            EAGLE1_DEPTHS if n_depths == 1 else n_depths,
            label(temperature=temperature or 1.0),
            n_roots=arguments.roots,
            temperature=temperature,
            generator=torch.Generator().manual_seed(arguments.seed),
        )
        found[kind] = {
            "texts": len(sample),
            "roots": acceptance.n_roots,
            "by_depth": [round(value, 4) for value in acceptance.by_depth],
            "tau": round(1 + acceptance.expected, 4),
        }
    return found


@torch.no_grad()
def measure_acceptance(
    network: AnyNetwork,
    batches: Iterable[PaddedTexts],
    n_depths: int,
    labeller: Labeller,
    *,
    temperature: float,
    n_roots: int = 64,
    generator: torch.Generator | None = None,
) -> Acceptance:
    """Acceptance at roots whose next ``n_depths`` tokens the target wrote.

    Args:
        batches: held-out texts, at least one.
        labeller: of soft labels over the target's whole vocabulary at this temperature, 1 for greedy texts.
        temperature: above 0: of both distributions, and rejection sampling accepts by chance; 0: a draft is accepted if
            the drafter's likeliest token is the text's.
    """
    chances: list[Tensor] = []  # of each batch [roots, n_depths]
    for texts in batches:
        roots = choose_roots(texts, n_roots, generator)
        n_drawn, is_whole = roots.at.shape[1], roots.counted
        by_depth: list[Tensor] = []
        drafted = draft(network, texts.tokens, texts.states_for(network.spec), roots, [n_drawn] * n_depths)
        for depth, drafts in enumerate(drafted):
            labels = labeller.label(texts, roots.drafted(depth, n_drawn), roots.counted)
            is_whole = is_whole & (labels.weights > 0)
            if temperature:
                by_depth.append(labels.overlap((drafts.logits / temperature).softmax(-1)).double())
            else:
                by_depth.append((drafts.logits.argmax(-1) == labels.token).double())
        chances.append(torch.stack(by_depth, dim=-1)[is_whole])
    return along_chains(torch.cat(chances))


def along_chains(accepted: Tensor) -> Acceptance:
    """Acceptance, from the chance ``[roots, n_depths]`` that each draft is accepted if all earlier ones were."""
    n_roots, totals = len(accepted), accepted.cumprod(-1).sum(0)
    before = torch.cat((totals.new_full((1,), float(n_roots)), totals[:-1]))
    by_depth = torch.where(before > 0, totals / before.clamp(min=1e-12), 0.0)
    return Acceptance(n_roots, tuple(by_depth.tolist()), float(totals.sum()) / max(1, n_roots))
