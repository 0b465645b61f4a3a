"""Ranges of layers."""

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
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.last == self.n_layers

    @property
    def numbers(self) -> range:
        return range(self.first, self.last)

    def __len__(self) -> int:
        return self.last - self.first


def split_layers(n_layers: int, n_stages: int) -> list[LayerRange]:
    """Return even contiguous ranges; earlier stages get the remainder, because the last one also has the head.

    Raises:
        ValueError: ``n_stages`` is below 1, or above the number of layers.
    """
    if not 1 <= n_stages <= n_layers:
        raise ValueError(f"stages must be between 1 and {n_layers} (the number of layers), not {n_stages}")
    size, extra = divmod(n_layers, n_stages)
    bounds = [0]
    for stage in range(n_stages):
        bounds.append(bounds[-1] + size + (stage < extra))
    return [LayerRange(first, last, n_layers) for first, last in pairwise(bounds)]
