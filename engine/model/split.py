"""From what the user asks for to the layers of every stage: auto, even, measured, or counts.

``auto`` weighs every part by its parameters: a step multiplies by each of them once and does little else, so a large
vocabulary head counts as the layers that it costs. ``measured`` takes seconds instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch

from engine.errors import ConfigError
from engine.model.layer_cost import layer_costs
from engine.model.loader import load_config
from engine.model.partition import ModelParts, check_ranges, partition
from engine.model.shard import LayerRange, split_layers
from engine.model.sizes import parameters, weight_bytes, with_kv
from engine.model.spec import ModelSpec

AUTO, EVEN, MEASURED = "auto", "even", "measured"


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """What decides which layers go where."""

    n_stages: int
    split: str = AUTO  # auto, even, measured, or a layer count for every stage: "22,20,20,18"
    memory: tuple[int, ...] = ()  # bytes per stage, or one number for all; none: no limit
    quantization: str | None = None
    cost_folder: str = ""  # where measurements are kept; "": nowhere


def choose_ranges(
    path: Path,
    spec: ModelSpec,
    options: SplitOptions,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kv_per_layer: int,
) -> list[LayerRange]:
    """The layers of every stage; with split ``measured``, seconds on ``device`` unless measured before.

    Raises:
        ConfigError: an option is wrong, or the stages' memory does not hold what it has to.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    check_split(options.split, spec.n_layers, options.n_stages)
    limits = check_memory(options.memory, options.n_stages)
    config = load_config(path)
    weights = weight_bytes(config, spec, dtype, options.quantization)
    memory = with_kv(weights, kv_per_layer)
    if options.split in (AUTO, MEASURED):
        costs = _work(config, spec)
        if options.split == MEASURED and options.n_stages > 1:
            costs = layer_costs(config, spec, dtype, device, options.quantization, options.cost_folder)
        return partition(costs, memory, options.n_stages, limits)
    ranges = _given(options.split, spec.n_layers, options.n_stages)
    if limits is not None:
        check_ranges(ranges, memory, limits)
    return ranges


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
        ConfigError: it is nothing of the kind.
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
    """A limit for every stage, bytes; None: there is none.

    Raises:
        ConfigError: neither one number nor one per stage, or one that is not above 0.
    """
    if not memory:
        return None
    if len(memory) not in (1, n_stages) or min(memory) <= 0:
        given = ",".join(f"{one / (1 << 30):g}" for one in memory)
        raise ConfigError(
            f"stage_memory_gib is {given}; it must be one number above 0, or one for each of the {n_stages} stages"
        )
    return memory * n_stages if len(memory) == 1 else memory


def _work(config: Any, spec: ModelSpec) -> ModelParts:
    """Work of a step in parameters: a lookup in the embedding is none, a tied head is as much as any other."""
    sizes = parameters(config, spec)
    return ModelParts(sizes.layers, 0, sizes.head)


def _given(split: str, n_layers: int, n_stages: int) -> list[LayerRange]:
    if split == EVEN:
        return split_layers(n_layers, n_stages)
    bounds = [0, *accumulate(layer_counts(split))]
    return [LayerRange(first, last, n_layers) for first, last in pairwise(bounds)]
