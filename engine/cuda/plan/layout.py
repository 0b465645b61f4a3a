"""Where everything lies in the one int32 array that a step sends to its device.

``[header, positions, slots, firsts of every window, tokens, sources, targets, members, tables, items]``: what a row has
lies at places that the number of rows alone decides, so that recorded launches find it; the rest is found through the
header and the items.
"""

from __future__ import annotations

from dataclasses import dataclass

SPLIT = 256  # positions whose softmax is one partial
MAX_WINDOWS = 4  # kinds of windows among a model's layers, none being one of them
HEADER = 2 * MAX_WINDOWS  # ints: of every window the number of items, and where they begin
ITEM = 8  # ints: see ``engine.cuda.plan.items``
# Rows of a step that launches are recorded for: the row tiles of products, then multiples of 64. All arrays of a plan
# then lie at multiples of 16 bytes: for others Triton compiles other kernels.
BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
MAX_ROWS = 1 << 16  # of a step
MAX_INTS = 1 << 28  # of a plan: its offsets are int32
PARTIAL_BYTES = 256 << 20  # of partial softmaxes that are held at once
DRAFTER_PARTIAL_BYTES = 128 << 20  # of a trained drafter's: 512 rows behind 3,800 tokens, for 32 heads of 128


def bucket(n_rows: int, buckets: tuple[int, ...] = BUCKETS) -> int:
    """The number of rows that a step of ``n_rows`` is padded to: a bucket, and above these a multiple of the largest.

    Raises:
        ValueError: there is no row, or there are more than ``MAX_ROWS``.
    """
    if not 1 <= n_rows <= MAX_ROWS:
        raise ValueError(f"a step has {n_rows} rows; it must have 1 to {MAX_ROWS}")
    largest = buckets[-1]
    return next((size for size in buckets if size >= n_rows), -(-n_rows // largest) * largest)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a plan's arrays lie.

    Args:
        n_rows: of the bucket.
        windows: of the layers, ascending, None (no window) first.
        split: positions of a split, a multiple of 64 or a power of two below it.
    """

    n_rows: int
    windows: tuple[int | None, ...]
    split: int = SPLIT

    @property
    def positions(self) -> slice:
        """Of every row its position in its text; 0 for rows that fill the bucket."""
        return self._array(0)

    @property
    def slots(self) -> slice:
        """Of every row the slot that its key and value are written to."""
        return self._array(1)

    def firsts(self, place: int) -> slice:
        """Of every row its first partial under a window; -1 for rows that fill the bucket."""
        return self._array(2 + place)

    @property
    def tokens(self) -> slice:
        """Of every row its token; 0 for rows that fill the bucket."""
        return self._array(2 + len(self.windows))

    @property
    def sources(self) -> slice:
        """Slots that are copied before the step's own are written; -1 where there is nothing to copy."""
        return self._array(3 + len(self.windows))

    @property
    def targets(self) -> slice:
        """Where these are copied to."""
        return self._array(4 + len(self.windows))

    @property
    def lists(self) -> int:
        """Where what follows the rows begins."""
        return HEADER + (5 + len(self.windows)) * self.n_rows

    def _array(self, number: int) -> slice:
        return slice(HEADER + number * self.n_rows, HEADER + (number + 1) * self.n_rows)

    def place(self, window: int | None) -> int:
        """Of a window among the windows."""
        return self.windows.index(window)

    def first_split(self, position: int, window: int | None) -> int:
        """The first split that a row at ``position`` sees something of."""
        return 0 if window is None else max(0, position - window + 1) // self.split
