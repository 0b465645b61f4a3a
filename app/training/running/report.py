"""What is told of a training: a table, a card beside the drafter, a document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.reporting.report import NOTHING, markdown, number, write_document

CARD = """\
# A drafter of method {method} for {target}

Trained by `spectra train` of spectra-serve {version} for the target with hash `{hash}`; it drafts for no other. The
licence of what the target was trained on, and of the prompts, is for its user to look up.

## Trained on

{texts}

{weights:,} weights, {steps} steps, {seconds:.0f} s on {device} ({threads} threads, {dtype}), {tokens:,} tokens
({rate:.0f} per second), {epochs} passes over the texts.

## Held out

Questions that were not trained on. *Greedy*: share of drafts that are the token that the target wrote at temperature 0.
*Temperature {temperature:g}*: chance that rejection sampling accepts. Each depth is given that the ones before it were
accepted; tau is tokens per forward of the target along a chain, its own token included.

{table}

## Command

    {command}
"""


def table(document: Mapping[str, Any]) -> str:
    """Acceptance by depth, as Markdown."""
    held_out = document["held_out"]
    kinds = {"greedy": held_out["greedy"], f"temperature {held_out['temperature']:g}": held_out["sampled"]}
    depths = max((len(kind["by_depth"]) for kind in kinds.values() if kind), default=0)
    rows = [
        [str(depth + 1), *(number(kind["by_depth"][depth], 3) if kind else NOTHING for kind in kinds.values())]
        for depth in range(depths)
    ]
    last = ["tau", *(number(kind["tau"] if kind else None) for kind in kinds.values())]
    return markdown(["draft", *kinds], [*rows, last])


def write_report(document: Mapping[str, Any], folder: Path) -> None:
    """Write the card and training.json."""
    write_document(document, folder / "training.json")
    training, texts = document["training"], document["texts"]
    files = [f"`{file}` ({kind})" for kind in ("prompts", "answers", "texts") for file in texts[kind]]
    said = (
        f"{texts['train']} texts with {texts['train_tokens']:,} tokens that count, of {', '.join(files)}; "
        f"{texts['cut_at_loops']} were cut where they begin to repeat themselves, {texts['shared_with_held_out']} left "
        f"out for what they share with one of the {texts['held_out']} held-out texts."
    )
    card = CARD.format(
        method=document["method"],
        target=document["target"],
        version=document["version"],
        hash=document["target_hash"][:16],
        texts=said,
        weights=document["weights"],
        rate=training["tokens_per_second"],
        temperature=document["held_out"]["temperature"],
        table=table(document),
        command=document["command"],
        **{name: training[name] for name in ("steps", "seconds", "device", "threads", "dtype", "tokens", "epochs")},
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
