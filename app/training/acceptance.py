"""Measures the acceptance of a drafter's drafts on held-out texts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from app.reporting.report import bar
from app.training.batches import PaddedTexts, ReadTexts, choose_roots, in_batches
from app.training.drafts import draft
from app.training.examples import Example
from app.training.losses import Labeller
from engine.drafter.networks.build import AnyNetwork

LabelAt = Callable[..., Labeller]  # of a temperature, over the whole vocabulary
EAGLE1_DEPTHS = 5  # measured depths of a drafter that is trained on one step


def measure_held_out(
    network: AnyNetwork, texts: Sequence[Example], read: ReadTexts, label: LabelAt, n_depths: int, arguments: Namespace
) -> dict[str, Any]:
    """Acceptance of greedy and of sampled answers; None where no answer is of that kind."""
    found: dict[str, Any] = {"temperature": arguments.temperature, "greedy": None, "sampled": None}
    for kind, temperature in (("greedy", 0.0), ("sampled", arguments.temperature or 1.0)):
        examples = [example for example in texts if (example.temperature == 0) == (kind == "greedy")]
        # Sources are hashes: the first ones are a random sample that changes little with more questions.
        sample = sorted(examples, key=lambda example: example.source)[: arguments.measured]
        if not sample:
            continue
        batches, n_batches = in_batches(read, sample, arguments.batch), -(-len(sample) // arguments.batch)
        found[kind] = {"texts": len(sample)} | measure_acceptance(
            network,
            bar(f"measure {kind}", n_batches, "batch", leave=False, iterable=batches),
            EAGLE1_DEPTHS if n_depths == 1 else n_depths,
            label(temperature=temperature or 1.0),
            n_roots=arguments.roots,
            temperature=temperature,
            generator=torch.Generator().manual_seed(arguments.seed),
        )
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
) -> dict[str, Any]:
    """Acceptance, as ``along_chains`` returns it, at roots whose next ``n_depths`` tokens the target wrote.

    At a temperature above 0, which both distributions have, rejection sampling accepts by chance; at 0 a draft is
    accepted if the drafter's likeliest token is the text's. ``labeller`` gives soft labels over the whole vocabulary.
    """
    chances: list[Tensor] = []  # of each batch [roots, n_depths]
    for texts in batches:
        roots = choose_roots(texts, n_roots, generator)
        n_drawn, is_whole = roots.at.shape[1], roots.counted
        by_depth: list[Tensor] = []
        drafted = draft(network, texts.tokens, texts.states_for(network.spec), roots, [n_drawn] * n_depths)
        for depth, drafts in enumerate(drafted):
            labels = labeller.label(texts, roots.at + 1 + depth, roots.counted)
            is_whole = is_whole & (labels.weights > 0)
            is_token = drafts.logits.argmax(-1) == labels.token
            chance = labels.overlap((drafts.logits / temperature).softmax(-1)) if temperature else is_token
            by_depth.append(chance.double())
        chances.append(torch.stack(by_depth, dim=-1)[is_whole])
    return along_chains(torch.cat(chances))


def along_chains(chances: Tensor) -> dict[str, Any]:
    """Acceptance as JSON values, from the chance ``[roots, depths]`` of each draft if all earlier ones were accepted.

    ``by_depth`` has the same condition; it is 0 where no chain got so far. ``tau`` is tokens per target forward pass,
    the target's own token included.
    """
    n_roots, totals = len(chances), chances.cumprod(-1).sum(0)
    before = torch.cat((totals.new_full((1,), float(n_roots)), totals[:-1]))
    by_depth = torch.where(before > 0, totals / before.clamp(min=1e-12), 0.0)
    return {"roots": n_roots, "by_depth": by_depth.tolist(), "tau": 1 + float(totals.sum()) / max(1, n_roots)}
