"""From the configured split to the layers of every stage: auto, even, measured, or counts.

``auto`` weighs every part by its parameters: a step multiplies by each of them once and does little else, so a large
vocabulary head counts as much as layers with as many parameters. ``measured`` takes seconds instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch

from engine.kept_files import in_cache
from engine.model.loader import load_config
from engine.model.partition import ModelParts, check_ranges, partition
from engine.model.quantization import check_quantization
from engine.model.ranges import LayerRange, split_layers
from engine.model.sizes import parameters, weight_bytes, with_kv
from engine.model.spec import ModelSpec
from engine.target_model.layer_cost import layer_costs
from engine.target_model.split_options import (
    AUTO,
    EVEN,
    MEASURED,
    SplitOptions,
    check_memory,
    check_split,
    layer_counts,
)


@dataclass(frozen=True, slots=True)
class DrafterLoad:
    """What a trained drafter adds to the last stage."""

    n_bytes: int  # weights and cache
    work: int  # weights that a step multiplies by


NO_LOAD = DrafterLoad(0, 0)


def choose_ranges(
    path: Path,
    spec: ModelSpec,
    options: SplitOptions,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kv_per_layer: int,
    drafter: DrafterLoad = NO_LOAD,
) -> list[LayerRange]:
    """The layers of every stage; with split ``measured``, seconds on ``device`` unless measured before.

    A drafter weighs on the last stage: what it multiplies by, at the head's pace.

    Raises:
        ConfigError: an option is wrong, or the stages' memory does not hold what it has to.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    check_split(options.split, spec.n_layers, options.n_stages)
    limits = check_memory(options.memory, options.n_stages)
    config = load_config(path)
    check_quantization(options.quantization, config, device)  # a package may be missing
    weights = weight_bytes(config, spec, dtype, options.quantization)
    memory = with_kv(weights, kv_per_layer)
    memory = replace(memory, head=memory.head + drafter.n_bytes)
    if options.split in (AUTO, MEASURED):
        work = costs = _work(config, spec)
        if options.split == MEASURED and options.n_stages > 1:
            kept = str(in_cache(options.cost_folder)) if options.cost_folder else ""
            costs = layer_costs(config, spec, dtype, device, options.quantization, kept, options.resolution)
        costs = replace(costs, head=costs.head * (1 + drafter.work / work.head))
        return partition(costs, memory, options.n_stages, limits)
    ranges = _given(options.split, spec.n_layers, options.n_stages)
    if limits is not None:
        check_ranges(ranges, memory, limits)
    return ranges


def _work(config: Any, spec: ModelSpec) -> ModelParts:
    """Work of a step in parameters: a lookup in the embedding costs none, a tied head as much as an untied one."""
    sizes = parameters(config, spec)
    return ModelParts(sizes.layers, 0, sizes.head)


def _given(split: str, n_layers: int, n_stages: int) -> list[LayerRange]:
    if split == EVEN:
        return split_layers(n_layers, n_stages)
    bounds = [0, *accumulate(layer_counts(split))]
    return [LayerRange(first, last, n_layers) for first, last in pairwise(bounds)]
