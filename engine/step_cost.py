"""Step times by sequences and rows, measured by ``engine.target_model.step_timing``; ``auto`` and batching use them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.kept_files import in_cache, keep_json

Seconds = npt.NDArray[np.float64]
Curve = tuple[tuple[int, ...], tuple[float, ...]]  # rows, seconds; both ascending
Rows = npt.NDArray[np.integer] | npt.NDArray[np.float64] | Sequence[int]
FORMAT = 4  # of the file
TOKENS_PER_DOUBLING = 0.31  # that twice as many nodes add per forward pass, from 1 node on (measured, SmolLM2-135M)
MEASURED_CONTEXT = 256  # tokens before the roots of the timed steps


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step, by curves over its rows, linear between their points.

    Args:
        curves: sequences that decode -> curve over their roots and nodes; the top ids of all of them are read back.
        prompts: tokens before a chunk -> curve over the rows of the chunk; empty if none was measured.
        plain: sequences that decode -> seconds of a step without nodes that reads nothing back; without an entry,
            reading back takes no time.
        prompt_row: seconds to read back the top ids of one prompt row.

    Raises:
        ValueError: ``curves`` is empty, or a value is no curve or no time.
    """

    curves: dict[int, Curve]
    prompts: dict[int, Curve] = field(default_factory=dict)
    plain: dict[int, float] = field(default_factory=dict)
    prompt_row: float = 0.0

    def __post_init__(self) -> None:
        if not self.curves:
            raise ValueError("step costs have no curve; at least one is needed")
        for batch, curve in self.curves.items():
            if batch < 1 or not _is_curve(curve):
                raise ValueError(f"step costs of batch size {batch} are no curve; rows and seconds must ascend")
        for context, curve in self.prompts.items():
            if context < 0 or not _is_curve(curve):
                raise ValueError(
                    f"step costs of prompts after {context} tokens are no curve; rows and seconds must ascend"
                )
        for batch, seconds in self.plain.items():
            if batch < 1 or not 0.0 < seconds < float("inf"):
                raise ValueError(f"the plain step of {batch} sequences takes {seconds} s; it must be above 0")
        if not 0.0 <= self.prompt_row < float("inf"):
            raise ValueError(f"prompt_row is {self.prompt_row} s; it must be 0 or more")

    def seconds(self, batch: int, rows: Rows, context: float = MEASURED_CONTEXT) -> Seconds:
        """Return the times of steps with ``batch`` sequences, ``rows`` ``[n]`` and ``context`` tokens before each root.

        A curve continues by its steepest slope to the end. Beyond the largest batch, each sequence adds as much as
        between the two largest.
        """
        sizes = sorted(self.curves)
        above = next((size for size in sizes if size >= batch), sizes[-1])
        below = next((size for size in reversed(sizes) if size <= batch), sizes[0])
        taken = _along(self.curves[above], rows)
        if above != below:
            share = (batch - below) / (above - below)
            taken = (1.0 - share) * _along(self.curves[below], rows) + share * taken
        elif batch > above and len(sizes) > 1:
            least = self.curves[above][0][:1]
            more = float((_along(self.curves[above], least) - _along(self.curves[sizes[-2]], least))[0])
            taken = taken + max(more, 0.0) / (above - sizes[-2]) * (batch - above)
        return taken + self.attention(batch, rows, context) if context > MEASURED_CONTEXT else taken

    def best_nodes(self, most: int) -> int:
        """Return the number of nodes, a power of two from 2 to ``most``, with most tokens per second for one sequence.

        It assumes that n nodes give 1 + ``TOKENS_PER_DOUBLING`` log2(n) tokens per forward pass.
        """
        doublings = np.arange(1, max(2, most.bit_length()))
        tokens = 1 + TOKENS_PER_DOUBLING * doublings
        return min(most, int(2 ** doublings[np.argmax(tokens / self.seconds(1, 2**doublings + 1))]))

    def attention(self, batch: int, rows: Rows, context: float) -> Seconds:
        """Return the seconds that longer contexts add: as many as for a prompt chunk of one sequence's rows."""
        first, last = min(self.prompts, default=0), max(self.prompts, default=0)
        chunk = np.asarray(rows, np.float64) / batch
        if first == last:
            return np.zeros_like(chunk)
        grown = np.maximum(_along(self.prompts[last], chunk) - _along(self.prompts[first], chunk), 0.0)
        return batch * grown * (max(context - MEASURED_CONTEXT, 0.0) / (last - first))

    @property
    def read_back(self) -> tuple[float, float]:
        """Seconds to read top ids back: per step that reads any, and per row read."""
        sizes = sorted(self.plain.keys() & self.curves.keys())
        if not sizes:
            return 0.0, 0.0
        first, last = ((n, max(self.curves[n][1][0] - self.plain[n], 0.0)) for n in (sizes[0], sizes[-1]))
        each = max(last[1] - first[1], 0.0) / (last[0] - first[0]) if last[0] > first[0] else 0.0
        return max(first[1] - first[0] * each, 0.0), each

    def by_batch(self, n: int, rows: int) -> Seconds:
        """Return the times of steps with 1 to ``n`` sequences of ``rows`` rows each, ``[n]``, ascending.

        Beyond the largest batch they continue by the slope between the last two.
        """
        sizes = sorted(self.curves)
        found = np.array([_along(self.curves[size], [size * rows])[0] for size in sizes])
        known = np.minimum.accumulate(found[::-1])[::-1]  # noise only adds: no step is slower than a larger one
        batches = np.arange(1, n + 1)
        slope = (known[-1] - known[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else known[0] / sizes[0]
        beyond = np.maximum(batches - sizes[-1], 0) * float(slope)
        return np.asarray(np.interp(batches, sizes, known) + beyond, np.float64)

    def prompt_seconds(self, context: int, rows: Rows) -> Seconds:
        """Return the times of steps with a chunk of ``rows`` ``[n]`` after ``context`` tokens, ascending with the rows.

        Raises:
            ValueError: none was measured.
        """
        if not self.prompts:
            raise ValueError("the step costs have no prompts; measure a step with prompt rows")
        first, last = min(self.prompts), max(self.prompts)
        near, far = _along(self.prompts[first], rows), _along(self.prompts[last], rows)
        if first == last or context <= first:
            return near
        # Attention time is proportional to the context; a far chunk that is faster than a near one is noise.
        share = (context - first) / (last - first)
        return np.maximum.accumulate(near + share * np.maximum(far - near, 0.0))


def _is_curve(curve: Curve) -> bool:
    xs, ys = (np.asarray(values, np.float64) for values in curve)
    if xs.ndim != 1 or xs.shape != ys.shape or not len(xs) or not bool(np.isfinite([xs, ys]).all()):
        return False
    return not (np.any(np.diff(xs) <= 0) or np.any(np.diff(ys) < 0) or ys[0] <= 0)


def _along(curve: Curve, rows: Rows) -> Seconds:
    """Return the seconds of a curve at ``rows``; it continues by its steepest slope to the end."""
    xs, ys = (np.asarray(values, np.float64) for values in curve)
    at = np.asarray(rows, np.float64)
    slope = float(np.max((ys[-1] - ys[:-1]) / (xs[-1] - xs[:-1]), initial=0.0))
    beyond = np.maximum(at - xs[-1], 0.0) * slope
    return np.asarray(np.interp(at, xs, ys) + beyond, np.float64)


def costs_file(name: str) -> Path:
    """Return the file of step times of a name on this node; every machine has its own."""
    return in_cache(f"{name}-{platform.node()}-{platform.machine()}-{os.cpu_count()}.json")


def read_costs(file: Path) -> StepCosts | None:
    """Return the costs that ``write_costs`` wrote; None if there is no valid file of this format."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            return None
        plain = {int(batch): float(seconds) for batch, seconds in found["plain"].items()}
        return StepCosts(_curves(found["curves"]), _curves(found["prompts"]), plain, float(found["prompt_row"]))
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _curves(found: dict[str, list[list[float]]]) -> dict[int, Curve]:
    return {int(key): (tuple(map(int, rows)), tuple(seconds)) for key, (rows, seconds) in found.items()}


def write_costs(file: Path, costs: StepCosts) -> None:
    """Write costs for the next start; if the folder cannot be written, only warn."""
    keep_json(file, {"format": FORMAT, **asdict(costs)}, "step times")
