"""What a configuration may say of the split into stages, and checks that need no weights."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from engine.target_model.options import Resolution

AUTO, EVEN, MEASURED = "auto", "even", "measured"


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """What decides which layers go where."""

    n_stages: int
    split: str = AUTO  # auto, even, measured, or a layer count for every stage: "22,20,20,18"
    memory: tuple[int, ...] = ()  # bytes per stage, or one number for all; none: no limit
    quantization: str | None = None
    cost_folder: str = ""  # where measurements are kept; "": nowhere
    resolution: Resolution | None = None  # the numerics to measure in; None: Hugging Face's layers


def check_split(split: str, n_layers: int, n_stages: int) -> None:
    """Raises ConfigError if a split is unknown or does not fit the model."""
    if not 1 <= n_stages <= n_layers:
        raise ConfigError(f"stages is {n_stages}; it must be 1 to {n_layers}, the model's number of layers")
    if split in (AUTO, EVEN, MEASURED):
        return
    counts = layer_counts(split)
    if len(counts) != n_stages or sum(counts) != n_layers:
        raise ConfigError(
            f"layer_split is {split}: {len(counts)} stages with {sum(counts)} layers; it must give each of the "
            f"{n_stages} stages its share of the model's {n_layers} layers"
        )


def layer_counts(split: str) -> tuple[int, ...]:
    """``"22,20"`` -> (22, 20).

    Raises:
        ConfigError: ``split`` is no list of counts of at least 1.
    """
    try:
        counts = tuple(int(part) for part in split.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise ConfigError(
            f"layer_split is {split!r}; it must be {AUTO}, {EVEN}, {MEASURED}, or a layer count of at least 1 for "
            f"every stage, as in 22,20,20,18"
        )
    return counts


def check_memory(memory: tuple[int, ...], n_stages: int) -> tuple[int, ...] | None:
    """A limit for every stage, in bytes; None when memory is not limited.

    Raises:
        ConfigError: ``memory`` has neither one number nor one per stage, or a number is not above 0.
    """
    if not memory:
        return None
    if len(memory) not in (1, n_stages) or min(memory) <= 0:
        given = ",".join(f"{one / (1 << 30):g}" for one in memory)
        raise ConfigError(
            f"stage_memory_gib is {given}; it must be one number above 0, or one for each of the {n_stages} stages"
        )
    return memory * n_stages if len(memory) == 1 else memory
