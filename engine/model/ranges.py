"""Which layers a stage has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True, frozen=True)
class LayerRange:
    """Layers ``first`` to ``last - 1`` of ``n_layers``."""

    first: int
    last: int
    n_layers: int

    @property
    def is_first(self) -> bool:
        """Whether this range begins with the embedding."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether this range ends with norm and head."""
        return self.last == self.n_layers

    def __len__(self) -> int:
        """Number of layers."""
        return self.last - self.first


def split_layers(n_layers: int, n_stages: int) -> list[LayerRange]:
    """Even contiguous ranges; earlier stages take the remainder, for the last one has the head as well.

    Raises:
        ValueError: there are more stages than layers, or none.
    """
    if not 1 <= n_stages <= n_layers:
        raise ValueError(f"stages must be between 1 and {n_layers} (the number of layers), not {n_stages}")
    size, extra = divmod(n_layers, n_stages)
    bounds = [0]
    for stage in range(n_stages):
        bounds.append(bounds[-1] + size + (stage < extra))
    return [LayerRange(first, last, n_layers) for first, last in pairwise(bounds)]
