"""Top ids: the target's best next ids after nodes, as arrays, because a step may read back a thousand of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from engine.tree import FloatArray, IntArray


class TopIds(Mapping[int, Sequence[int]]):
    """Maps a node (-1 is the root) to ids, best first; callers that need all of them read the arrays.

    Args:
        nodes: ``[n]`` int32, ascending.
        ids: ``[n, k]`` int32, best first.
        logprobs: ``[n, k]`` fp32, raw (temperature 1, no penalties), or ``None`` if no speculator needs them.

    Raises:
        ValueError: the shapes do not match.
    """

    def __init__(self, nodes: IntArray, ids: IntArray, logprobs: FloatArray | None = None) -> None:
        if ids.ndim != 2 or nodes.shape != ids.shape[:1] or (logprobs is not None and logprobs.shape != ids.shape):
            shape = None if logprobs is None else logprobs.shape
            raise ValueError(f"top ids of shapes {nodes.shape}, {ids.shape} and {shape} must be [n], [n, k] and [n, k]")
        self.nodes = nodes
        self.ids = ids
        self.logprobs = logprobs
        self._rows: dict[int, int] | None = None  # node -> row, built on first access

    @classmethod
    def of(cls, mapping: Mapping[int, Sequence[int]]) -> TopIds:
        """Return a mapping as arrays; all its lists must have the same length."""
        if isinstance(mapping, TopIds):
            return mapping
        nodes = sorted(mapping)
        ids = np.array([mapping[node] for node in nodes], dtype=np.int32)
        return cls(np.array(nodes, dtype=np.int32), ids if nodes else ids.reshape(0, 0))

    def __getitem__(self, node: int) -> list[int]:
        if self._rows is None:
            self._rows = {known: row for row, known in enumerate(self.nodes.tolist())}
        ids: list[int] = self.ids[self._rows[node]].tolist()
        return ids

    def __iter__(self) -> Iterator[int]:
        return iter(self.nodes.tolist())

    def __len__(self) -> int:
        return len(self.nodes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopIds):
            return NotImplemented
        if (self.logprobs is None) != (other.logprobs is None):
            return False
        same = np.array_equal(self.nodes, other.nodes) and np.array_equal(self.ids, other.ids)
        return same and (self.logprobs is None or np.array_equal(self.logprobs, other.logprobs))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash((self.nodes.tobytes(), self.ids.tobytes()))


NO_TOP_IDS = TopIds(np.empty(0, np.int32), np.empty((0, 0), np.int32))
