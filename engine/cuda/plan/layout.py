"""Arrangement of a step's plan in one int32 array for the device.

``[header, positions, slots, firsts of every window, tokens, sources, targets, members, tables, items]``. The number of
rows alone decides where the arrays of rows are, so recorded launches find them in the same place. The header and the
items say where the rest is.
"""

from __future__ import annotations

from dataclasses import dataclass

TILE = 64  # rows times query heads per key head in an item: a Hopper GPU multiplies 64 at once
SPLIT = 256  # positions whose softmax is one partial
MAX_WINDOWS = 4  # different windows among a model's layers; no window counts as one
HEADER = 2 * MAX_WINDOWS  # ints: for every window the number of items and the place of the first
ITEM = 8  # ints: see ``engine.cuda.plan.items``
# Numbers of rows for which launches are recorded: the row tiles of products, then multiples of 64. They align all
# arrays of a plan to 16 bytes; for other addresses Triton compiles other kernels.
BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
MAX_ROWS = 1 << 16  # of a step
MAX_INTS = 1 << 28  # of a plan: its offsets are int32
PARTIAL_BYTES = 256 << 20  # of memory for partial softmaxes
DRAFTER_PARTIAL_BYTES = 128 << 20  # for a trained drafter: 512 rows after 3,800 tokens, with 32 heads of 128


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
    """Positions of the arrays in a plan.

    Args:
        n_rows: rows of the bucket.
        windows: sliding windows of the layers, ascending; None (no window) first.
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
        """Slot to which the key and value of every row are written."""
        return self._array(1)

    def firsts(self, number: int) -> slice:
        """Return where the first partial of every row under a window is; -1 for rows that fill the bucket."""
        return self._array(2 + number)

    @property
    def tokens(self) -> slice:
        """Token of every row; 0 for rows that fill the bucket."""
        return self._array(2 + len(self.windows))

    @property
    def sources(self) -> slice:
        """Slots that are copied before the step writes its rows; -1 if there is nothing to copy."""
        return self._array(3 + len(self.windows))

    @property
    def targets(self) -> slice:
        """Slots to which ``sources`` are copied."""
        return self._array(4 + len(self.windows))

    @property
    def lists(self) -> int:
        """Position of the first member or table."""
        return HEADER + (5 + len(self.windows)) * self.n_rows

    def _array(self, number: int) -> slice:
        return slice(HEADER + number * self.n_rows, HEADER + (number + 1) * self.n_rows)

    def window_number(self, window: int | None) -> int:
        return self.windows.index(window)
