"""The report of a build: a folder beside the snapshot, and a table on stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.corpus.examples import write_examples
from app.corpus.figures import Choice, figures, totals
from app.corpus.inputs import Input
from retrieval_store.refine.texts import Texts

JSON, PICTURE, EXAMPLES = "report.json", "perplexity.png", "kept.jsonl"
COLUMNS = ("texts", "too_short", "repeated", "outside_vocabulary", "scored", "kept", "kept_tokens")


def write_report(
    folder: Path, facts: Mapping[str, Any], choice: Choice, texts: Texts, inputs: Sequence[Input], tokenizer: Any
) -> str:
    """Write the three files (an unrefined corpus has no picture) and return the table.

    Args:
        folder: made if missing.
        facts: further keys of ``report.json``.
        choice: what was kept.
        texts: all texts.
        inputs: in the order of the texts' sources.
        tokenizer: shows the examples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found, total = figures(choice, inputs), totals(choice)
    report = {**facts, "perplexity": choice.range, "total": total, "inputs": found}
    (folder / JSON).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_examples(choice, texts, inputs, tokenizer, folder / EXAMPLES)
    (folder / PICTURE).unlink(missing_ok=True)
    if choice.perplexities is not None:
        from app.corpus.histogram import draw  # matplotlib takes a second to load

        title = f"{total['kept']} of {total['scored']} texts kept, {total['kept_tokens']:,} tokens"
        draw(choice, inputs, title, folder / PICTURE)
    return table([*found, {"name": "all", **total}] if len(found) > 1 else found)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row of counts per input, with the median perplexity of what was kept and of what was not."""
    head = ("input", *(name.replace("_", " ") for name in COLUMNS), "median ppl kept", "dropped")
    body = [(str(row["name"]), *(str(row[name]) for name in COLUMNS), *_medians(row)) for row in rows]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs)).rstrip()
        for pairs in (list(zip(line, widths, strict=True)) for line in (head, *body))
    )


def _medians(row: Mapping[str, Any]) -> tuple[str, str]:
    sides = [row.get("perplexity", {}).get(side) for side in ("kept", "dropped")]
    kept, dropped = ("-" if side is None else f"{side['median']:.2f}" for side in sides)
    return kept, dropped
