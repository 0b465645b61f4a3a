"""The report of a build: a folder next to the snapshot with counts, a histogram and examples, and a table on stdout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from app.corpus.histogram import draw
from app.corpus.inputs import CorpusInput
from app.corpus.selection import Perplexities, TextSelection
from app.reporting.plotting import can_plot
from app.reporting.report import columns, number, write_document, write_lines
from retrieval_store.refine.selection import Bools, Numbers
from retrieval_store.refine.texts import FolderTexts

JSON, PICTURE, EXAMPLES = "report.json", "perplexity.png", "kept.jsonl"
COLUMNS = ("texts", "too_short", "repeated", "outside_vocabulary", "scored", "kept", "kept_tokens")
QUANTILES = {"lowest": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "highest": 1.0}
EACH = 10  # examples at each place of the range of perplexities
SHOWN = 400  # characters of an example


def count_inputs(selection: TextSelection, inputs: Sequence[CorpusInput]) -> list[dict[str, Any]]:
    """Counts and perplexities of the texts of each input."""
    return [
        {
            "name": one.name,
            "sha256": one.sha256,
            "bytes": one.bytes,
            **count_texts(selection, selection.rows["source"] == i),
        }
        for i, one in enumerate(inputs)
    ]


def count_texts(selection: TextSelection, mine: Bools) -> dict[str, Any]:
    """Counts and perplexities of texts ``mine`` ``[n]``."""
    lengths = selection.rows["length"].astype(np.int64)
    kept = mine & selection.is_kept
    found: dict[str, Any] = {
        "documents": len(np.unique(selection.rows["document"][mine])),
        "texts": int(mine.sum()),
        "tokens": int(lengths[mine].sum()),
        "too_short": int((mine & selection.is_short).sum()),
        "repeated": int((mine & selection.is_repeated).sum()),
        "outside_vocabulary": int((mine & selection.is_outside).sum()),
        "scored": 0,
        "kept": int(kept.sum()),
        "kept_tokens": int(lengths[kept].sum()),
    }
    if selection.perplexities is not None:
        is_scored = mine & ~np.isnan(selection.perplexities)
        found["scored"] = int(is_scored.sum())
        found["perplexity"] = {
            "kept": quantiles(selection.perplexities[kept]),
            "dropped": quantiles(selection.perplexities[is_scored & ~kept]),
        }
    return found


def quantiles(perplexities: Perplexities) -> Mapping[str, float] | None:
    """Quantiles of the finite perplexities; None if there is none."""
    finite = perplexities[np.isfinite(perplexities)]
    if not len(finite):
        return None
    return {name: round(float(np.quantile(finite, at, method="nearest")), 4) for name, at in QUANTILES.items()}


def write_report(
    folder: Path,
    facts: Mapping[str, Any],
    selection: TextSelection,
    texts: FolderTexts,
    counts: Sequence[dict[str, Any]],
    tokenizer: PreTrainedTokenizerFast,
) -> str:
    """Write the three files (an unrefined corpus has no histogram) and return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    total = count_texts(selection, np.ones(len(selection.rows), np.bool_))
    document = {**facts, "perplexity": selection.range, "total": total, "inputs": counts}
    write_document(document, folder / JSON)
    names = [one["name"] for one in counts]
    write_lines(_examples(selection, texts, names, tokenizer), folder / EXAMPLES)
    (folder / PICTURE).unlink(missing_ok=True)
    if selection.perplexities is not None and can_plot():
        title = f"{total['kept']} of {total['scored']} texts kept, {total['kept_tokens']:,} tokens"
        draw(selection, names, title, folder / PICTURE)
    return table([*counts, {"name": "all", **total}] if len(counts) > 1 else counts)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row of counts per input, with the median perplexity of kept and of dropped texts."""
    head = ("input", *(name.replace("_", " ") for name in COLUMNS), "median ppl kept", "dropped")
    body = []
    for row in rows:
        sides = [row.get("perplexity", {}).get(side) for side in ("kept", "dropped")]
        medians = [number(None if side is None else side["median"]) for side in sides]
        body.append((str(row["name"]), *(str(row[name]) for name in COLUMNS), *medians))
    return columns([head, *body], left=(0,))


def _examples(
    selection: TextSelection, texts: FolderTexts, names: Sequence[str], tokenizer: PreTrainedTokenizerFast
) -> Iterator[dict[str, Any]]:
    """Texts from the whole range of perplexities, so that a reader sees what was kept and what was dropped."""
    picked = [(place, int(text)) for place, some in _places(selection) for text in some]
    origins = texts.origins([text for _, text in picked])
    for (place, text), origin in zip(picked, origins, strict=True):
        row = selection.rows[text]
        yield {
            "place": place,
            "perplexity": None if selection.perplexities is None else round(float(selection.perplexities[text]), 4),
            "kept": bool(selection.is_kept[text]),
            "tokens": int(row["length"]),
            "input": names[int(row["source"])],
            "origin": origin,
            "text": tokenizer.decode(texts.tokens(text)[:SHOWN])[:SHOWN],
        }


def _places(selection: TextSelection) -> Iterator[tuple[str, Numbers]]:
    """Texts at both ends and on both sides of the threshold; the first texts of an unrefined corpus."""
    if selection.perplexities is None:
        yield "kept", selection.kept[:EACH]
        return
    order = np.argsort(selection.perplexities, kind="stable")
    order = order[np.isfinite(selection.perplexities[order])]
    kept, others = order[selection.is_kept[order]], order[~selection.is_kept[order]]
    n_low = min(EACH, (len(kept) + 1) // 2)
    yield "lowest", kept[:n_low]
    yield "just kept", kept[n_low:][-EACH:]
    n_near = min(EACH, (len(others) + 1) // 2)
    yield "just dropped", others[:n_near]
    yield "highest", others[n_near:][-EACH:]
