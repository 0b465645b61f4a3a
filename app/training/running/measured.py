"""Held-out acceptance of greedy and of sampled answers, as JSON values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from app.reporting.report import bar
from app.training.acceptance import Acceptance, measure
from app.training.data.batches import in_batches
from app.training.data.capture import Capture
from app.training.data.examples import Example
from app.training.texts import PaddedTexts
from engine.drafter.networks.build import AnyNetwork

EAGLE1_DEPTHS = 5  # chains of a drafter that is trained on one step


def measured(
    network: AnyNetwork,
    held_out: Sequence[Example],
    capture: Capture,
    n_depths: int,
    draft_ids: Tensor | None,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Acceptance by depth; None where no answer is of that kind.

    Greedy: a draft is right where it is the text's token, on greedy answers. Sampled: by chance, on all others.
    """
    kinds = {
        "greedy": [example for example in held_out if example.temperature == 0],
        "sampled": [example for example in held_out if example.temperature != 0],
    }
    found: dict[str, Any] = {"temperature": arguments.temperature}
    for kind, examples in kinds.items():
        # Sources are hashes: the first of them are a sample that further questions change little.
        some = sorted(examples, key=lambda example: example.source)[: arguments.measured]
        if not some:
            found[kind] = None
            continue
        with bar(f"measure {kind}", len(some), "text", leave=False) as shown:
            batches = (
                texts for texts in in_batches(some, capture, arguments.batch) if shown.update(len(texts.tokens)) or 1
            )
            both = measure(
                network,
                batches,
                EAGLE1_DEPTHS if n_depths == 1 else n_depths,
                n_roots=arguments.roots,
                temperature=arguments.temperature or 1.0,
                draft_ids=draft_ids,
                generator=torch.Generator().manual_seed(arguments.seed),
            )
        found[kind] = as_json(both.greedy if kind == "greedy" else both.sampled, len(some))
    return found


def _counted(batches: Iterable[PaddedTexts], shown: Any) -> Iterator[PaddedTexts]:
    for texts in batches:
        yield texts
        shown.update(len(texts.tokens))


def as_json(acceptance: Acceptance, n_texts: int) -> dict[str, Any]:
    """Figures of one kind; ``tau`` counts the target's own token."""
    return {
        "texts": n_texts,
        "roots": acceptance.n_roots,
        "by_depth": [round(value, 4) for value in acceptance.by_depth],
        "tau": round(1 + acceptance.expected, 4),
    }
