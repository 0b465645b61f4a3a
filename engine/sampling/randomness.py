"""Where random decisions come from: keyed numbers when the engine runs, an enumeration of all outcomes in tests."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt


class Randomness(Protocol):
    """The decisions of rejection sampling."""

    def accept(self, probability: float) -> bool:
        """True with this probability."""

    def draw(self, weights: npt.NDArray[Any]) -> int:
        """An index in proportion to ``weights`` ``[vocab]`` (not normalised, sum above 0); never one of weight 0."""
