"""The report of a training: table, card, document, and a picture of loss and acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.reporting.plotting import can_plot, colour, grid, label, save
from app.reporting.report import NOTHING, markdown, number, write_document

CARD = """\
# A drafter of method {method} for {target}

Trained by `spectra train` of spectra-serve {version} for the target with hash `{target_hash:.16}`. It is of use for
this target only. Check the licences of the target's training data and of the prompts before you use it.

## Trained on

{summary}

{weights:,} weights, {steps} steps, {seconds:.0f} s on {device} ({threads} threads, {dtype}), {tokens:,} tokens
({tokens_per_second:.0f} per second), {epochs:.2f} passes over the texts.

## Held out

Questions that were not trained on. *Greedy*: the share of drafts that equal the token that the target wrote at
temperature 0. *Temperature {temperature:g}*: the chance that rejection sampling accepts. Each depth counts the drafts
whose earlier drafts were accepted; tau is tokens per target forward pass along a chain, the target's own included.

{table}

## Command

    {command}
"""


def table(document: Mapping[str, Any]) -> str:
    kinds = _kinds(document["held_out"])
    depths = max((len(kind["by_depth"]) for kind in kinds.values() if kind), default=0)
    rows = [
        [str(depth + 1), *(number(kind["by_depth"][depth], 3) if kind else NOTHING for kind in kinds.values())]
        for depth in range(depths)
    ]
    last = ["tau", *(number(kind["tau"] if kind else None) for kind in kinds.values())]
    return markdown(["draft", *kinds], [*rows, last])


def write_report(document: Mapping[str, Any], folder: Path) -> None:
    write_document(document, folder / "training.json")
    training, texts = document["training"], document["texts"]
    files = [f"`{file}` ({kind})" for kind in ("prompts", "answers") for file in texts[kind]]
    files += [f"{texts['own_questions']} different questions that the target wrote"] if texts["own_questions"] else []
    summary = (
        f"{texts['train']} texts with {texts['train_tokens']:,} answer tokens, from {', '.join(files)}. "
        f"{texts['train_cut_at_loops']} were cut where they begin to repeat themselves. "
        f"{texts['shared_with_held_out']} others are too similar to one of the {texts['held_out']} held-out texts."
    )
    found = {"summary": summary, "table": table(document), "temperature": document["held_out"]["temperature"]}
    (folder / "README.md").write_text(CARD.format(**{**document, **training, **found}), encoding="utf-8")
    if can_plot():
        _draw(document, folder / "training.png")


def _draw(document: Mapping[str, Any], path: Path) -> None:
    """Write the picture: the loss by step, and held-out acceptance by depth."""
    figure, (loss, acceptance) = grid(1, 2, (9, 3.2))
    steps, losses = zip(*document["training"]["curve"], strict=True)
    loss.plot(steps, losses, color=colour(0))
    label(loss, "step", "loss, nats, smoothed")
    for i, (name, found) in enumerate(_kinds(document["held_out"]).items()):
        if found:
            depths = range(1, len(found["by_depth"]) + 1)
            acceptance.plot(depths, found["by_depth"], "o-", color=colour(i), label=f"{name}: tau {found['tau']:.2f}")
    acceptance.set_ylim(0, 1)
    acceptance.legend(fontsize=8)
    label(acceptance, "draft", "accepted, if all earlier ones were")
    figure.suptitle(f"{document['method']} for {document['target']}", fontsize=10)
    save(figure, path)


def _kinds(held_out: Mapping[str, Any]) -> dict[str, Any]:
    return {"greedy": held_out["greedy"], f"temperature {held_out['temperature']:g}": held_out["sampled"]}
