"""The report of a build: a folder beside the snapshot with counts, a histogram and examples, and a table on stdout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from app.corpus.figures import TextSelection, figures, totals
from app.corpus.inputs import CorpusInput
from app.reporting.plotting import can_plot
from app.reporting.report import columns, number, write_document, write_lines
from retrieval_store.refine.selection import Numbers
from retrieval_store.refine.texts import FolderTexts

JSON, PICTURE, EXAMPLES = "report.json", "perplexity.png", "kept.jsonl"
COLUMNS = ("texts", "too_short", "repeated", "outside_vocabulary", "scored", "kept", "kept_tokens")
EACH = 10  # examples at each place of the range of perplexities
SHOWN = 400  # characters of an example


def write_report(
    folder: Path,
    facts: Mapping[str, Any],
    choice: TextSelection,
    texts: FolderTexts,
    inputs: Sequence[CorpusInput],
    tokenizer: PreTrainedTokenizerFast,
) -> str:
    """Write the three files (an unrefined corpus has no histogram) and return the table.

    Args:
        folder: made if missing.
        facts: further keys of ``report.json``.
        inputs: in the order of the texts' sources.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found, total = figures(choice, inputs), totals(choice)
    report = {**facts, "perplexity": choice.range, "total": total, "inputs": found}
    write_document(report, folder / JSON)
    write_lines(_examples(choice, texts, inputs, tokenizer), folder / EXAMPLES)
    (folder / PICTURE).unlink(missing_ok=True)
    if choice.perplexities is not None and can_plot():
        from app.corpus.histogram import draw  # matplotlib is an extra

        title = f"{total['kept']} of {total['scored']} texts kept, {total['kept_tokens']:,} tokens"
        draw(choice, inputs, title, folder / PICTURE)
    return table([*found, {"name": "all", **total}] if len(found) > 1 else found)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row of counts per input, with the median perplexity of kept and of dropped texts."""
    head = ("input", *(name.replace("_", " ") for name in COLUMNS), "median ppl kept", "dropped")
    body = [(str(row["name"]), *(str(row[name]) for name in COLUMNS), *_medians(row)) for row in rows]
    return columns([head, *body], left=(0,))


def _medians(row: Mapping[str, Any]) -> tuple[str, str]:
    sides = [row.get("perplexity", {}).get(side) for side in ("kept", "dropped")]
    kept, dropped = (number(None if side is None else side["median"]) for side in sides)
    return kept, dropped


def _examples(
    choice: TextSelection, texts: FolderTexts, inputs: Sequence[CorpusInput], tokenizer: PreTrainedTokenizerFast
) -> Iterator[dict[str, Any]]:
    """Texts from along the range of perplexities, so that a reader sees what was kept and what was dropped."""
    picked = [(place, int(text)) for place, some in _places(choice) for text in some]
    origins = texts.origins([text for _, text in picked])
    for (place, text), origin in zip(picked, origins, strict=True):
        row = choice.rows[text]
        yield {
            "place": place,
            "perplexity": None if choice.perplexities is None else round(float(choice.perplexities[text]), 4),
            "kept": bool(choice.is_kept[text]),
            "tokens": int(row["length"]),
            "input": inputs[int(row["source"])].name,
            "origin": origin,
            "text": tokenizer.decode(texts.tokens(text)[:SHOWN])[:SHOWN],
        }


def _places(choice: TextSelection) -> Iterator[tuple[str, Numbers]]:
    """Texts at both ends and on both sides of the threshold; the first texts of an unrefined corpus."""
    if choice.perplexities is None:
        yield "kept", choice.kept[:EACH]
        return
    order = np.argsort(choice.perplexities, kind="stable")
    order = order[np.isfinite(choice.perplexities[order])]
    kept, others = order[choice.is_kept[order]], order[~choice.is_kept[order]]
    n_low = min(EACH, (len(kept) + 1) // 2)
    yield "lowest", kept[:n_low]
    yield "just kept", kept[n_low:][-EACH:]
    n_near = min(EACH, (len(others) + 1) // 2)
    yield "just dropped", others[:n_near]
    yield "highest", others[n_near:][-EACH:]
