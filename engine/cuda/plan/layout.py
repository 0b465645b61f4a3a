"""Arrangement of a step's plan in the one int32 array that is sent to its device.

``[header, positions, slots, firsts of every window, tokens, sources, targets, members, tables, items]``. Only the
number of rows decides where the entries of rows are, so recorded launches find them in the same place. The header and
the items say where the rest is.
"""

from __future__ import annotations

from dataclasses import dataclass

TILE = 64  # rows times query heads of a key head in an item: a Hopper GPU multiplies so many at once
SPLIT = 256  # positions whose softmax is one partial
MAX_WINDOWS = 4  # different windows among a model's layers; no window counts as one
HEADER = 2 * MAX_WINDOWS  # ints: for every window the number of items and the place of the first
ITEM = 8  # ints: see ``engine.cuda.plan.items``
# Rows of a step that launches are recorded for: the row tiles of products, then multiples of 64. All arrays of a plan
# then lie at multiples of 16 bytes: for others Triton compiles other kernels.
BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
MAX_ROWS = 1 << 16  # of a step
MAX_INTS = 1 << 28  # of a plan: its offsets are int32
PARTIAL_BYTES = 256 << 20  # of partial softmaxes that are held at once
DRAFTER_PARTIAL_BYTES = 128 << 20  # of a trained drafter's: 512 rows after 3,800 tokens, for 32 heads of 128


def bucket(n_rows: int, buckets: tuple[int, ...] = BUCKETS) -> int:
    """Return the rows that a step of ``n_rows`` is padded to: a bucket, or a multiple of the largest bucket.

    Raises:
        ValueError: there is no row, or there are more than ``MAX_ROWS``.
    """
    if not 1 <= n_rows <= MAX_ROWS:
        raise ValueError(f"a step has {n_rows} rows; it must have 1 to {MAX_ROWS}")
    largest = buckets[-1]
    return next((size for size in buckets if size >= n_rows), -(-n_rows // largest) * largest)


@dataclass(frozen=True, slots=True)
class PlanLayout:
    """Places of a plan's arrays.

    Args:
        n_rows: of the bucket.
        windows: of the layers, ascending; None (no window) first.
        split: positions per split, a multiple of 64 or a smaller power of two.
    """

    n_rows: int
    windows: tuple[int | None, ...]
    split: int = SPLIT

    @property
    def positions(self) -> slice:
        """Position of every row in its text; 0 for rows that fill the bucket."""
        return self._array(0)

    @property
    def slots(self) -> slice:
        """Slot that the key and value of every row are written to."""
        return self._array(1)

    def firsts(self, place: int) -> slice:
        """First partial of every row under a window; -1 for rows that fill the bucket."""
        return self._array(2 + place)

    @property
    def tokens(self) -> slice:
        """Token of every row; 0 for rows that fill the bucket."""
        return self._array(2 + len(self.windows))

    @property
    def sources(self) -> slice:
        """Slots that are copied before the step writes its own; -1 where there is nothing to copy."""
        return self._array(3 + len(self.windows))

    @property
    def targets(self) -> slice:
        """Slots that ``sources`` are copied to."""
        return self._array(4 + len(self.windows))

    @property
    def lists(self) -> int:
        """Place of the first member or table."""
        return HEADER + (5 + len(self.windows)) * self.n_rows

    def _array(self, number: int) -> slice:
        return slice(HEADER + number * self.n_rows, HEADER + (number + 1) * self.n_rows)

    def place(self, window: int | None) -> int:
        """Return the number of a window."""
        return self.windows.index(window)
