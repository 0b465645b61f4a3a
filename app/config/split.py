"""What the flags about splits say, before any model is there to hold them against."""

from __future__ import annotations

import math

from engine.errors import ConfigError
from engine.target.options import GIB
from engine.target.split_options import AUTO, EVEN, MEASURED, check_memory, layer_counts


def stage_memory(given: str | float | None) -> tuple[int, ...]:
    """``"80,40"`` or 80 -> bytes; empty: no limit.

    Raises:
        ConfigError: it is nothing of the kind, or not above 0.
    """
    if given is None:
        return ()
    try:
        values = [float(part) for part in str(given).split(",")]
    except ValueError:
        values = []
    if not values or not all(value > 0 and math.isfinite(value) for value in values):
        raise ConfigError(f"stage_memory_gib is {given!r}; it must be GiB above 0, as in 80 or 80,80,40,40")
    return tuple(int(value * GIB) for value in values)


def check_split_flags(split: str, memory_gib: str | float | None, stages: int) -> None:
    """Raises ValueError if a flag makes no sense whatever the model is; the message names it."""
    try:
        if split not in (AUTO, EVEN, MEASURED) and len(layer_counts(split)) != stages:
            raise ConfigError(f"layer_split is {split}; it must give each of the {stages} stages its number of layers")
        check_memory(stage_memory(memory_gib), stages)
    except ConfigError as error:
        raise ValueError(str(error)) from None
