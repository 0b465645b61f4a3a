"""Settings of ``prediction``."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PredictionConfig:
    """Settings of ``prediction``.

    Raises:
        ConfigError: a value is out of range.
    """

    least: float = 0.02  # path probability of a node that is drafted
    places: int = 8  # of the predicted text where the written one may be, followed at once

    def __post_init__(self) -> None:
        if not 0.0 < self.least <= 1.0:
            raise ConfigError(f"prediction: least must lie in (0, 1], got {self.least}")
        if not 1 <= self.places <= 64:
            raise ConfigError(f"prediction: places must lie in 1..64, got {self.places}")
