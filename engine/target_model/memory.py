"""Computes the size of a KV cache whose options name none, from the memory of its devices.

A process fills a share of a GPU's whole memory, not of its free memory. So a restarted pipeline, or another one on the
same kind of GPU, has the same number of blocks, which routers check. None of this has run on a GPU, and the bytes of a
step are an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine.cuda.plan.layout import DRAFTER_PARTIAL_BYTES, PARTIAL_BYTES
from engine.device import is_host
from engine.errors import ConfigError
from engine.kv.blocks import block_bytes
from engine.model.loader import load_config
from engine.model.ranges import LayerRange
from engine.model.spec import ModelSpec
from engine.target_model.info import TargetInfo
from engine.target_model.loading import describe_target
from engine.target_model.numerics import resolve_dtype
from engine.target_model.options import ANY, CPU_CACHE, GIB, TargetOptions, check_memory
from engine.target_model.split import memory_of_stages, stage_ranges

USABLE = 0.9  # of a GPU's memory; the rest is for CUDA, libraries and fragmentation
FREE = 0.97  # of the memory that is free before loading, if other processes use the rest
MOST_BLOCKS = 1 << 18  # 16 million tokens; the host takes too long to search more
LEAST_BLOCKS = 4


def room_of(device: str, share: float = 1.0) -> int:
    """Return the bytes that a process with ``share`` of a GPU may fill; ``ANY`` on a CPU, whose cache is fixed."""
    if is_host(torch.device(device)):
        return ANY
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return int(min(USABLE * min(share, 1.0) * total, FREE * free))


def with_cache(options: TargetOptions, path: Path, rooms: Sequence[int]) -> TargetOptions:
    """Return options with the size of the KV cache, and with the layers of every stage if the size depends on them.

    On a GPU the cache gets the memory that weights, the drafter and the largest step leave; the stage with the fewest
    blocks decides. On a CPU it is ``CPU_CACHE``, because weights are pages of files that processes share.

    Args:
        options: of the target; returned unchanged if they name a size.
        path: checkpoint directory.
        rooms: bytes that each stage may fill, or all stages together.

    Raises:
        ConfigError: an option is wrong, or too little is left.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    if options.kv_bytes is not None:
        return options
    if is_host(torch.device(options.device)):
        return replace(options, kv_bytes=CPU_CACHE)
    info = replace(describe_target(replace(options, kv_bytes=ANY), path), n_blocks=0)
    ranges = stage_ranges(options, path, info)
    stages = _stage_bytes(options, path, info, ranges)
    devices = stages if len(rooms) == len(stages) else [_together(stages)]
    found = [_blocks(held, room) for held, room in zip(devices, rooms, strict=True)]
    found += [_blocks(replace(one, step=0), one.limit) for one in stages]
    split = ",".join(str(len(layers)) for layers in ranges)
    return replace(options, kv_bytes=min(*found, MOST_BLOCKS) * sum(one.block for one in stages), split=split)


@dataclass(frozen=True, slots=True)
class _DeviceBytes:
    """Bytes on one device."""

    name: str
    weights: int  # with the drafter's
    step: int  # of the largest step
    block: int  # of a KV block in all layers
    limit: int  # for weights and cache


def _stage_bytes(
    options: TargetOptions, path: Path, info: TargetInfo, ranges: Sequence[LayerRange]
) -> list[_DeviceBytes]:
    spec, size, config = info.spec, options.block_size, load_config(path)
    dtype = resolve_dtype(options.dtype, spec, options.device)
    limits = check_memory(options.stage_memory, len(ranges)) or (ANY,) * len(ranges)
    memory = memory_of_stages(options, path, info, ranges)
    found = []
    for i, (layers, one, limit) in enumerate(zip(ranges, memory, limits, strict=True)):
        block = block_bytes(len(layers), size, spec.n_kv_heads, spec.head_dim, dtype.itemsize)
        step = step_bytes(config, spec, options.step_rows, layers.is_last, options.has_executor)
        if layers.is_last and info.drafter is not None:
            block += size * info.drafter.cache_bytes
            step += DRAFTER_PARTIAL_BYTES if info.drafter.cache_bytes and options.has_executor else 0
        found.append(_DeviceBytes(f"stage {i}", one.weights, step, block, limit))
    return found


def _together(stages: Sequence[_DeviceBytes]) -> _DeviceBytes:
    """Sum stages on one device, which compute in turns."""
    weights, block = sum(one.weights for one in stages), sum(one.block for one in stages)
    return _DeviceBytes("the target", weights, max(one.step for one in stages), block, ANY)


def _blocks(held: _DeviceBytes, room: int) -> int:
    n_blocks = (room - held.weights - held.step) // held.block
    if n_blocks < LEAST_BLOCKS:
        raise ConfigError(
            f"kv_gib is auto, but {held.name} has no room for a KV cache: {held.weights / GIB:.3g} GiB of weights, "
            f"{held.step / GIB:.3g} GiB for a step, and {room / GIB:.3g} GiB that may be filled; more stages, a larger "
            "GPU or quantization int8 or fp8 would help, or kv_gib with a number"
        )
    return n_blocks


def step_bytes(config: Any, spec: ModelSpec, n_rows: int, is_last: bool, has_executor: bool) -> int:
    """Estimate the bytes of a step of ``n_rows`` on a stage, without weights and cache.

    A row takes the states of a layer in fp32. On the last stage it also takes its logits, and two arrays of their size
    while tokens are sampled. An executor also has partial softmaxes.
    """
    heads = (spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
    row: int = 4 * (4 * spec.hidden_size + 2 * heads + 3 * config.intermediate_size)
    row += 3 * 4 * spec.vocab_size if is_last else 0
    return n_rows * row + (PARTIAL_BYTES if has_executor else 0)
