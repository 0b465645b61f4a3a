"""Chooses the layers of every stage, and computes the memory of every stage.

Split ``auto`` weighs every part by its parameters: a step multiplies by each of them once and does little else, so a
large vocabulary head counts as much as layers with as many parameters. A layer's experts all count, because the rows of
a batch or a tree use nearly all of them. ``measured`` weighs by seconds instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch

from engine.kept_files import in_cache
from engine.kv.blocks import block_bytes
from engine.model.loader import load_config
from engine.model.matrices.quantization import check_quantization
from engine.model.partition import ModelParts, check_ranges, partition
from engine.model.ranges import LayerRange, split_layers
from engine.model.share import RankShare
from engine.model.sizes import StageMemory, parameters, stage_memory, weight_bytes, with_kv
from engine.model.spec import ModelSpec
from engine.target_model.info import TargetInfo
from engine.target_model.layer_cost import layer_costs
from engine.target_model.numerics import resolve_dtype, with_numerics
from engine.target_model.options import (
    AUTO,
    EVEN,
    MEASURED,
    TargetOptions,
    check_memory,
    check_split,
    layer_counts,
)


def stage_ranges(options: TargetOptions, path: Path, info: TargetInfo) -> list[LayerRange]:
    """Return the layers of every stage.

    Split ``measured`` must run where the stages' device is. It takes seconds, unless the costs were measured before. A
    drafter adds the weights that it multiplies by to the last stage, at the head's cost per weight.

    Raises:
        ConfigError: an option is wrong, or the stages' memory does not hold weights and KV cache.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    spec, n_stages = info.spec, options.stages
    if options.simulation is not None:
        return split_layers(spec.n_layers, n_stages)
    dtype, device = resolve_dtype(options.dtype, spec, options.device), torch.device(options.device)
    if options.split == MEASURED:
        options = with_numerics(options, path)
    check_split(options.split, spec.n_layers, n_stages)
    limits = check_memory(options.stage_memory, n_stages)
    config = load_config(path)
    check_quantization(options.quantization, config, device)  # a package may be missing
    share = RankShare(0, options.tensor_parallel)
    weights = weight_bytes(config, spec, dtype, options.quantization, share, device)
    memory = with_kv(weights, kv_per_layer(info, dtype, share))
    if info.drafter is not None:
        memory = replace(memory, head=memory.head + info.drafter.weight_bytes + _drafter_cache(info))
    if options.split in (AUTO, MEASURED):
        work = 0 if info.drafter is None else info.drafter.work * options.tensor_parallel  # one rank alone drafts
        costs = _costs(options, config, spec, dtype, device, work)
        return partition(costs, memory, n_stages, limits)
    if options.split == EVEN:
        ranges = split_layers(spec.n_layers, n_stages)
    else:
        bounds = [0, *accumulate(layer_counts(options.split))]
        ranges = [LayerRange(first, last, spec.n_layers) for first, last in pairwise(bounds)]
    if limits is not None:
        check_ranges(ranges, memory, limits)
    return ranges


def _costs(
    options: TargetOptions, config: Any, spec: ModelSpec, dtype: torch.dtype, device: torch.device, drafter_work: int
) -> ModelParts:
    """Return the cost of every part, in parameters or seconds; the head's includes the drafter's."""
    sizes = parameters(config, spec)
    costs = ModelParts(
        sizes.layers, 0, sizes.head
    )  # an embedding is only a lookup; a tied head costs as much as another
    if options.split == MEASURED and options.stages > 1:
        folder = str(in_cache(options.cost_folder)) if options.cost_folder else ""
        costs = layer_costs(config, spec, dtype, device, options.quantization, folder, options.resolution)
    return replace(costs, head=costs.head * (1 + drafter_work / sizes.head))


def memory_of_stages(
    options: TargetOptions, path: Path, info: TargetInfo, ranges: Sequence[LayerRange]
) -> list[StageMemory]:
    """Return the bytes of weights and KV cache of every stage; nothing for a simulated target.

    Of a stage with several ranks they are the leader's, which has the drafter.
    """
    if options.simulation is not None:
        return []
    dtype, device = resolve_dtype(options.dtype, info.spec, options.device), torch.device(options.device)
    share = RankShare(0, options.tensor_parallel)
    weights = weight_bytes(load_config(path), info.spec, dtype, options.quantization, share, device)
    stages = stage_memory(weights, kv_per_layer(info, dtype, share), ranges)
    if info.drafter is not None:
        last = stages[-1]
        kv = last.kv + _drafter_cache(info)
        stages[-1] = replace(last, weights=last.weights + info.drafter.weight_bytes, kv=kv)
    return stages


def kv_per_layer(info: TargetInfo, dtype: torch.dtype, share: RankShare) -> int:
    """Return the bytes of KV cache of each layer on a rank."""
    spec = share.spec(info.spec)
    return info.n_blocks * block_bytes(1, info.block_size, spec.n_kv_heads, spec.head_dim, dtype.itemsize)


def _drafter_cache(info: TargetInfo) -> int:
    """Return the bytes of the drafter's KV cache."""
    return 0 if info.drafter is None else info.n_blocks * info.block_size * info.drafter.cache_bytes
