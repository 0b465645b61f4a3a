"""The histogram of perplexities: a row of axes per input with its kept and dropped texts and the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from app.corpus.figures import TextSelection
from app.corpus.inputs import CorpusInput
from app.reporting.plotting import LABEL, colour, grid, headroom, label, save

BINS = 60
ROWS = 10  # of axes; further inputs share the last one
OUTLIERS = 0.001  # share of the texts that the last bin holds although they are to the right of it


def draw(choice: TextSelection, inputs: Sequence[CorpusInput], title: str, path: Path) -> None:
    """Write the histogram of a refined corpus as PNG."""
    assert choice.perplexities is not None, "an unrefined corpus has no perplexities"
    is_scored = np.isfinite(choice.perplexities)
    low, high = choice.perplexities[is_scored].min(), np.quantile(choice.perplexities[is_scored], 1 - OUTLIERS)
    groups = _groups(choice, inputs)
    figure, rows = grid(len(groups), 1, (9, 1.2 + 2.0 * len(groups)), sharex=True)
    has_outliers = False
    for i, (ax, (name, mine)) in enumerate(zip(rows, groups, strict=True)):
        threshold = choice.threshold(mine)
        edges = _edges(low, max(high, threshold or high), threshold or low)
        has_outliers |= bool((choice.perplexities[mine & is_scored] > edges[-1]).any())
        _histogram(ax, choice, mine & is_scored, edges, colour(i))
        if threshold is not None:
            ax.axvline(threshold, color="black", linewidth=1, linestyle="--", label=f"kept up to {threshold:.4g}")
        ax.set_title(f"{name}: {_share(choice, mine & is_scored)}", fontsize=LABEL + 1, loc="left")
        ax.legend(fontsize=LABEL, loc="upper right")
    _finish(rows[-1], has_outliers)
    figure.suptitle(title, fontsize=LABEL + 2)
    save(figure, path)


def _edges(low: float, high: float, threshold: float) -> npt.NDArray[np.float64]:
    """Bins of equal width on a log scale; the threshold is an edge, so that no bin is half kept."""
    if high <= low * 1.001:
        return np.array([low / 1.05, threshold * 1.0001, high * 1.05])
    width = np.log(high / low) / BINS
    below = np.arange(0, np.ceil(np.log(threshold / low) / width) + 1)
    above = np.arange(1, np.ceil(np.log(high / threshold) / width) + 1)
    return np.concatenate((threshold * np.exp(-width * below[::-1]), threshold * np.exp(width * above)))


def _groups(choice: TextSelection, inputs: Sequence[CorpusInput]) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """(name, which texts) of each row of axes."""
    shown = len(inputs) if len(inputs) <= ROWS else ROWS - 1
    source = choice.rows["source"]
    groups = [(Path(one.name).name or one.name, source == i) for i, one in enumerate(inputs[:shown])]
    if shown < len(inputs):
        groups.append((f"{len(inputs) - shown} more inputs", source >= shown))
    return groups


def _histogram(
    ax: Any, choice: TextSelection, mine: npt.NDArray[np.bool_], edges: npt.NDArray[np.float64], shade: Any
) -> None:
    assert choice.perplexities is not None
    below = np.zeros(len(edges) - 1)
    for name, which, alpha in (("kept", choice.is_kept, 1.0), ("dropped", ~choice.is_kept, 0.3)):
        # A text whose perplexity equals the threshold is kept: it belongs into the bin to the left of that edge.
        found = np.searchsorted(edges, choice.perplexities[mine & which], side="left") - 1
        counts = np.bincount(np.clip(found, 0, len(below) - 1), minlength=len(below))
        ax.bar(edges[:-1], counts, np.diff(edges), bottom=below, align="edge", color=shade, alpha=alpha, label=name)
        below = below + counts
    label(ax, y="texts")
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    headroom([ax])


def _share(choice: TextSelection, mine: npt.NDArray[np.bool_]) -> str:
    kept, scored = int((mine & choice.is_kept).sum()), int(mine.sum())
    return f"{kept} of {scored} texts kept" + (f" ({kept / scored:.1%})" if scored else "")


def _finish(ax: Any, has_outliers: bool) -> None:
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high / low < 1000:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    outliers = "; the last bar holds all that is higher" if has_outliers else ""
    label(ax, f"perplexity under the target, log scale{outliers}")
