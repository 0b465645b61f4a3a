"""How long a step takes, by sequences and rows: looked up by ``auto``, measured by ``engine.step_timing``."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: a curve per batch size over the rows of a step (roots and nodes), linear between its points.

    Both count: rows are arithmetic, sequences are attention and bookkeeping.

    Args:
        curves: batch size -> (rows, seconds), both ascending.

    Raises:
        ValueError: there is no curve, or one that is none.
    """

    curves: dict[int, tuple[tuple[int, ...], tuple[float, ...]]]

    def __post_init__(self) -> None:
        if not self.curves:
            raise ValueError("step costs need a curve")
        for batch, (rows, seconds) in self.curves.items():
            xs, ys = np.asarray(rows, np.float64), np.asarray(seconds, np.float64)
            is_curve = xs.ndim == 1 and xs.shape == ys.shape and len(xs) > 0 and bool(np.isfinite([xs, ys]).all())
            if batch < 1 or not is_curve or np.any(np.diff(xs) <= 0) or np.any(np.diff(ys) < 0) or ys[0] <= 0:
                raise ValueError(f"step costs of batch size {batch} are no curve")

    def seconds(self, batch: int, rows: npt.NDArray[np.integer] | Sequence[int]) -> Seconds:
        """Of steps with ``batch`` sequences and ``rows`` ``[n]`` rows; beyond the last point by its slope."""
        sizes = sorted(self.curves)
        above = next((size for size in sizes if size >= batch), sizes[-1])
        below = next((size for size in reversed(sizes) if size <= batch), sizes[0])
        high = self._curve(above, rows)
        if above == below:
            return high
        share = (batch - below) / (above - below)
        return (1.0 - share) * self._curve(below, rows) + share * high

    def _curve(self, batch: int, rows: npt.NDArray[np.integer] | Sequence[int]) -> Seconds:
        xs, ys = (np.asarray(values, np.float64) for values in self.curves[batch])
        wanted = np.asarray(rows, np.float64)
        slope = (ys[-1] - ys[0]) / max(xs[-1] - xs[0], 1.0)
        beyond = np.maximum(wanted - xs[-1], 0.0) * slope
        return np.asarray(np.interp(wanted, xs, ys) + beyond, np.float64)


def read_costs(file: Path) -> StepCosts | None:
    """What ``write_costs`` wrote; None when there is nothing, or nothing that makes sense."""
    try:
        curves = json.loads(file.read_text(encoding="utf-8"))
        return StepCosts({int(batch): (tuple(rows), tuple(seconds)) for batch, (rows, seconds) in curves.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_costs(file: Path, costs: StepCosts) -> None:
    """Keep costs for the next start; a folder that cannot be written is no error."""
    waiting = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        waiting.write_text(json.dumps({str(batch): curve for batch, curve in costs.curves.items()}), encoding="utf-8")
        waiting.replace(file)
    except OSError as error:
        logger.warning("step times were not kept: %s", error)
        with contextlib.suppress(OSError):
            waiting.unlink()
