"""Step times by sequences and rows: looked up by ``auto``, measured by ``engine.target_model.step_timing``."""

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
FORMAT = 3  # of the file
TOKENS_PER_DOUBLING = 0.31  # that twice as many nodes add to a forward, from 1 on; suffix+token-recycling, SmolLM2-135M
MEASURED_BEHIND = 256  # tokens before the roots whose steps were timed


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step, by curves over its rows, linear between their points.

    Rows are arithmetic; sequences are attention and bookkeeping, and so are the tokens before a chunk of prompt.

    Args:
        curves: sequences that decode -> curve over their roots and nodes, ids behind all of which are read back.
        prompts: tokens before a chunk -> curve over the rows of the chunk; may be empty, when none was measured.
        plain: sequences that decode -> seconds of a step without nodes of which nothing is read back; where none was
            measured, reading back takes no time.
        prompt_row: seconds that reading back the ids behind one row of a prompt takes.

    Raises:
        ValueError: there is no curve, or one that is none.
    """

    curves: dict[int, Curve]
    prompts: dict[int, Curve] = field(default_factory=dict)
    plain: dict[int, float] = field(default_factory=dict)
    prompt_row: float = 0.0

    def __post_init__(self) -> None:
        if not self.curves:
            raise ValueError("step costs need a curve")
        for batch, curve in self.curves.items():
            if batch < 1 or not _is_curve(curve):
                raise ValueError(f"step costs of batch size {batch} are no curve")
        for context, curve in self.prompts.items():
            if context < 0 or not _is_curve(curve):
                raise ValueError(f"step costs of prompts behind {context} tokens are no curve")
        for batch, seconds in self.plain.items():
            if batch < 1 or not 0.0 < seconds < float("inf"):
                raise ValueError(f"the plain step of {batch} sequences takes no time: {seconds}")
        if not 0.0 <= self.prompt_row < float("inf"):
            raise ValueError(f"reading a row of a prompt back takes no such time: {self.prompt_row}")

    def seconds(self, batch: int, rows: Rows, context: float = MEASURED_BEHIND) -> Seconds:
        """Of steps with ``batch`` sequences and ``rows`` ``[n]`` rows behind ``context`` tokens each.

        Beyond the last point of a curve by its slope; beyond the largest batch every sequence adds what one more of as
        many rows adds between the two largest.
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
        return taken + self.attention(batch, rows, context) if context > MEASURED_BEHIND else taken

    def best_nodes(self, most: int) -> int:
        """The power of two from 2 to ``most``, 1 at least, that gives most tokens per second to one sequence if n nodes
        give 1 + ``TOKENS_PER_DOUBLING`` log2(n) tokens per forward."""
        doublings = np.arange(1, max(2, most.bit_length()))
        tokens = 1 + TOKENS_PER_DOUBLING * doublings
        return min(most, int(2 ** doublings[np.argmax(tokens / self.seconds(1, 2**doublings + 1))]))

    def attention(self, batch: int, rows: Rows, context: float) -> Seconds:
        """What longer texts than those of the curves add: as much as they add to a chunk of the rows of a sequence."""
        first, last = min(self.prompts, default=0), max(self.prompts, default=0)
        wanted = np.asarray(rows, np.float64) / batch
        if first == last:
            return np.zeros_like(wanted)
        grown = np.maximum(_along(self.prompts[last], wanted) - _along(self.prompts[first], wanted), 0.0)
        return batch * grown * (max(context - MEASURED_BEHIND, 0.0) / (last - first))

    @property
    def read_back(self) -> tuple[float, float]:
        """Seconds that reading ids back takes: of a step in which any are read, and of every row of these."""
        sizes = sorted(self.plain.keys() & self.curves.keys())
        if not sizes:
            return 0.0, 0.0
        first, last = ((n, max(self.curves[n][1][0] - self.plain[n], 0.0)) for n in (sizes[0], sizes[-1]))
        each = max(last[1] - first[1], 0.0) / (last[0] - first[0]) if last[0] > first[0] else 0.0
        return max(first[1] - first[0] * each, 0.0), each

    def by_batch(self, n: int, rows: int) -> Seconds:
        """Of steps with 1 to ``n`` sequences of ``rows`` rows each, ``[n]``, ascending; beyond the largest batch on by
        the slope between the last two."""
        sizes = sorted(self.curves)
        found = np.array([_along(self.curves[size], [size * rows])[0] for size in sizes])
        known = np.minimum.accumulate(found[::-1])[::-1]  # noise only adds: no step is slower than a larger one
        wanted = np.arange(1, n + 1)
        slope = (known[-1] - known[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else known[0] / sizes[0]
        beyond = np.maximum(wanted - sizes[-1], 0) * float(slope)
        return np.asarray(np.interp(wanted, sizes, known) + beyond, np.float64)

    def prompt_seconds(self, context: int, rows: Rows) -> Seconds:
        """Of steps with a chunk of ``rows`` ``[n]`` rows, ascending, behind ``context`` tokens: never less for more.

        Raises:
            ValueError: none was measured.
        """
        if not self.prompts:
            raise ValueError("no step with rows of prompt was measured")
        first, last = min(self.prompts), max(self.prompts)
        near, far = _along(self.prompts[first], rows), _along(self.prompts[last], rows)
        if first == last or context <= first:
            return near
        # Attention takes time in proportion to what it looks at; a far chunk cheaper than a near one is noise.
        share = (context - first) / (last - first)
        return np.maximum.accumulate(near + share * np.maximum(far - near, 0.0))


def _is_curve(curve: Curve) -> bool:
    xs, ys = (np.asarray(values, np.float64) for values in curve)
    if xs.ndim != 1 or xs.shape != ys.shape or not len(xs) or not bool(np.isfinite([xs, ys]).all()):
        return False
    return not (np.any(np.diff(xs) <= 0) or np.any(np.diff(ys) < 0) or ys[0] <= 0)


def _along(curve: Curve, rows: Rows) -> Seconds:
    """A curve at ``rows``, beyond its last point by its slope."""
    xs, ys = (np.asarray(values, np.float64) for values in curve)
    wanted = np.asarray(rows, np.float64)
    slope = (ys[-1] - ys[0]) / max(xs[-1] - xs[0], 1.0)
    beyond = np.maximum(wanted - xs[-1], 0.0) * slope
    return np.asarray(np.interp(wanted, xs, ys) + beyond, np.float64)


def costs_file(name: str) -> Path:
    """Where the step times of a name are kept on this node; another machine has another file."""
    return in_cache(f"{name}-{platform.node()}-{platform.machine()}-{os.cpu_count()}.json")


def read_costs(file: Path) -> StepCosts | None:
    """What ``write_costs`` wrote; None when there is no such file, or it holds something else or another format."""
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
    """Keep costs for the next start; a folder that cannot be written is no error."""
    keep_json(file, {"format": FORMAT, **asdict(costs)}, "step times")
