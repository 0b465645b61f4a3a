"""The report of a build: a folder next to the snapshot with counts, a histogram and examples, and a table on stdout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from app.corpus.inputs import CorpusInput
from app.corpus.selection import FLAWS, Perplexities, TextSelection
from app.reporting.plotting import LABEL, can_plot, colour, grid, headroom, label, save
from app.reporting.report import columns, number, write_document, write_lines
from retrieval_store.refine.selection import Bools, Numbers
from retrieval_store.refine.texts import FolderTexts

JSON, PICTURE, EXAMPLES = "report.json", "perplexity.png", "kept.jsonl"
COLUMNS = ("texts", *FLAWS, "scored", "kept", "kept_tokens")
QUANTILES = {"lowest": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "highest": 1.0}
EACH = 10  # examples at each place of the range of perplexities
SHOWN = 400  # characters of an example
BINS = 60  # of a histogram
PLOTS = 10  # further inputs share the last one
OUTLIERS = 0.001  # share of the texts that the last bin holds although they are to the right of it


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
        **{name: int((mine & (selection.flaws == flaw)).sum()) for flaw, name in enumerate(FLAWS, start=1)},
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
        _draw(selection, names, title, folder / PICTURE)
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


def _draw(selection: TextSelection, names: Sequence[str], title: str, path: Path) -> None:
    """Write the histogram of a refined corpus as PNG; ``names`` are those of the inputs."""
    from matplotlib.ticker import LogFormatter, MaxNLocator

    assert selection.perplexities is not None, "an unrefined corpus has no perplexities"
    is_scored = np.isfinite(selection.perplexities)
    scored = selection.perplexities[is_scored]
    low, high = scored.min(), np.quantile(scored, 1 - OUTLIERS)
    kept, groups = selection.is_kept, _group_texts(selection, names)
    figure, axes = grid(len(groups), 1, (9, 1.2 + 2.0 * len(groups)), sharex=True)
    scale = "perplexity under the target, log scale"
    for i, (ax, (name, mine)) in enumerate(zip(axes, groups, strict=True)):
        threshold, shown = selection.threshold(mine), mine & is_scored
        edges = _bin_edges(low, max(high, threshold or high), threshold or low)
        if (selection.perplexities[shown] > edges[-1]).any():
            scale = "perplexity under the target, log scale; the last bar holds all higher values"
        sides = [np.clip(selection.perplexities[shown & which], edges[0], edges[-1]) for which in (kept, ~kept)]
        ax.hist(sides, edges, stacked=True, color=[colour(i), (*colour(i)[:3], 0.3)], label=["kept", "dropped"])
        label(ax, y="texts")
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        headroom([ax])
        if threshold is not None:
            ax.axvline(threshold, color="black", linewidth=1, linestyle="--", label=f"kept up to {threshold:.4g}")
        n_kept, n_shown = int((shown & kept).sum()), int(shown.sum())
        share = f" ({n_kept / n_shown:.1%})" if n_shown else ""
        ax.set_title(f"{name}: {n_kept} of {n_shown} texts kept{share}", fontsize=LABEL + 1, loc="left")
        ax.legend(fontsize=LABEL, loc="upper right")
    axes[-1].set_xscale("log")
    for axis_format in (axes[-1].xaxis.set_major_formatter, axes[-1].xaxis.set_minor_formatter):
        axis_format(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.4)))
    label(axes[-1], scale)
    figure.suptitle(title, fontsize=LABEL + 2)
    save(figure, path)


def _bin_edges(low: float, high: float, threshold: float) -> npt.NDArray[np.float64]:
    """Bins of equal width on a log scale; an edge is just above the threshold, so no bin is half kept."""
    threshold *= 1.0001
    if high <= low * 1.001:
        return np.array([low / 1.05, threshold, high * 1.05])
    width = np.log(high / low) / BINS
    below, above = np.ceil(np.log(threshold / low) / width), max(0, np.ceil(np.log(high / threshold) / width))
    edges: npt.NDArray[np.float64] = threshold * np.exp(width * np.arange(-below, above + 1))
    return edges


def _group_texts(selection: TextSelection, names: Sequence[str]) -> list[tuple[str, Bools]]:
    """(name, which texts) of each plot."""
    shown = len(names) if len(names) <= PLOTS else PLOTS - 1
    source = selection.rows["source"]
    groups = [(Path(name).name or name, source == i) for i, name in enumerate(names[:shown])]
    return [*groups, (f"{len(names) - shown} more inputs", source >= shown)] if shown < len(names) else groups
