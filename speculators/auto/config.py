"""Settings of ``auto``."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Settings of ``auto``.

    Raises:
        ConfigError: a value is out of range.
    """

    sources: tuple[str, ...] = ()  # methods to choose from; by default suffix and token-recycling, and what is given
    retrieval: bool = True  # whether texts to look up are among what is given
    longest_pause: int = 64  # steps without a draft after repeated failures, or more where asking is dear:
    overhead: float = 0.01  # share of a request's step time that asking in vain may take, up to 512 steps' pause
    reserve: int = 8  # nodes asked for beyond what paid lately
    margin: float = 0.03  # a draft must promise so much more tokens per second than none: not all costs are known

    def __post_init__(self) -> None:
        if self.longest_pause < 1:
            raise ConfigError(f"auto: longest_pause must be at least 1, got {self.longest_pause}")
        if self.reserve < 1:
            raise ConfigError(f"auto: reserve must be at least 1, got {self.reserve}")
        if not 0.0 < self.overhead <= 1.0:
            raise ConfigError(f"auto: overhead must lie in (0, 1], got {self.overhead}")
        if not 0.0 <= self.margin < 1.0:
            raise ConfigError(f"auto: margin must lie in [0, 1), got {self.margin}")
        if "auto" in self.sources:
            raise ConfigError("auto: sources cannot contain auto")
