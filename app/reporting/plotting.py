"""The common style of all plots: PNG files, colours, small labels, bars that keep clear of the frame.

Matplotlib is an extra and takes a second to load, so it is imported when something is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DPI = 120
LABEL, LEGEND = 8, 7  # points
HEADROOM = 1.06  # height of the axes over that of the highest bar
COLOURS = [i for i in (*range(0, 20, 2), *range(1, 20, 2)) if i not in (14, 15)]  # of tab20, without its greys
MISSING = "plots need matplotlib: pip install 'spectra-serve[plots]'"


def can_plot() -> bool:
    """Whether matplotlib is installed; if not, stderr says how to get it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        print(f"spectra: {MISSING}", file=sys.stderr)
        return False
    return True


def grid(n_rows: int, n_columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, list[Any]]:
    """A figure of ``size`` (width and height in inches) and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(n_rows, n_columns, squeeze=False, **options).flat)
    for ax in axes:
        ax.tick_params(which="both", labelsize=LABEL)
    return figure, axes


def colour(i: int) -> Any:
    """The colour of the i-th series, from 0 on; 18 differ."""
    from matplotlib import colormaps

    return colormaps["tab20"](COLOURS[i % len(COLOURS)])


def label(ax: Any, x: str = "", y: str = "") -> None:
    """Name the axes; an empty name changes nothing."""
    if x:
        ax.set_xlabel(x, fontsize=LABEL)
    if y:
        ax.set_ylabel(y, fontsize=LABEL)


def headroom(axes: Sequence[Any]) -> None:
    """Give all axes the same scale, from 0 to above their highest bar; call it when everything is drawn.

    Matplotlib's own margin is lost where bars are stacked: it keeps limits at the foot of a bar.
    """
    top = max(ax.dataLim.y1 for ax in axes)
    for ax in axes:
        ax.set_ylim(0, HEADROOM * top if top > 0 else 1)


def save(figure: Any, path: Path) -> Path:
    """Write a figure as PNG, in a folder that is made if missing; returns ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path
