"""The histogram of perplexities: one plot per input with its kept and dropped texts and the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from app.corpus.selection import TextSelection
from app.reporting.plotting import LABEL, colour, grid, headroom, label, save
from retrieval_store.refine.selection import Bools

BINS = 60
PLOTS = 10  # further inputs share the last one
OUTLIERS = 0.001  # share of the texts that the last bin holds although they are to the right of it


def draw(selection: TextSelection, names: Sequence[str], title: str, path: Path) -> None:
    """Write the histogram of a refined corpus as PNG; ``names`` are those of the inputs."""
    from matplotlib.ticker import MaxNLocator

    assert selection.perplexities is not None, "an unrefined corpus has no perplexities"
    is_scored = np.isfinite(selection.perplexities)
    scored = selection.perplexities[is_scored]
    low, high = scored.min(), np.quantile(scored, 1 - OUTLIERS)
    kept, groups = selection.is_kept, _group_texts(selection, names)
    figure, axes = grid(len(groups), 1, (9, 1.2 + 2.0 * len(groups)), sharex=True)
    has_outliers = False
    for i, (ax, (name, mine)) in enumerate(zip(axes, groups, strict=True)):
        threshold, shown = selection.threshold(mine), mine & is_scored
        edges = _bin_edges(low, max(high, threshold or high), threshold or low)
        has_outliers |= bool((selection.perplexities[shown] > edges[-1]).any())
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
    _format_scale(axes[-1], has_outliers)
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


def _format_scale(ax: Any, has_outliers: bool) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high / low < 1000:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    outliers = "; the last bar holds all higher values" if has_outliers else ""
    label(ax, f"perplexity under the target, log scale{outliers}")
