"""Computes the size of a KV cache whose options name none, from the memory of its devices.

A process fills a share of a GPU's whole memory, not of its free memory. So a restarted pipeline, or another one on the
same kind of GPU, has the same number of blocks, which routers check. None of this has run on a GPU, and the bytes of a
step are an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.cuda.plan.layout import BUCKETS, DRAFTER_PARTIAL_BYTES, PARTIAL_BYTES
from engine.device import is_host
from engine.errors import ConfigError
from engine.model.ranges import LayerRange
from engine.model.share import RankShare
from engine.model.spec import ModelSpec
from engine.target_model.info import TargetInfo, bytes_of_block
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
    blocks decides, and the rank of a stage with the least room. On a CPU it is ``CPU_CACHE``, because weights are pages
    of files that processes share.

    Args:
        options: of the target; returned unchanged if they name a size.
        path: checkpoint directory.
        rooms: bytes that each process may fill, all ranks of a stage adjacent; or one number for all stages together.

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
    n_ranks, item_bytes = options.tensor_parallel, resolve_dtype(options.dtype, info.spec, options.device).itemsize
    least = [min(rooms[first : first + n_ranks]) for first in range(0, len(rooms), n_ranks)]
    devices = stages if len(rooms) == n_ranks * len(stages) else [_together(stages)]
    found = [_blocks(held, room) for held, room in zip(devices, least, strict=True)]
    found += [_blocks(replace(one, step=0), one.limit) for one in stages]
    split = ",".join(str(len(layers)) for layers in ranges)
    n_bytes = min(*found, MOST_BLOCKS) * bytes_of_block(info.spec, options, item_bytes, info.drafter)
    return replace(options, kv_bytes=n_bytes, split=split)


@dataclass(frozen=True, slots=True)
class _DeviceBytes:
    """Bytes on one device: a stage's, or those of its first rank, which has most."""

    name: str
    weights: int  # with the drafter's
    step: int  # of the largest step
    block: int  # of a KV block in its layers
    limit: int  # for weights and cache


def _stage_bytes(
    options: TargetOptions, path: Path, info: TargetInfo, ranges: Sequence[LayerRange]
) -> list[_DeviceBytes]:
    n_ranks = options.tensor_parallel
    limits = check_memory(options.stage_memory, len(ranges)) or (ANY,) * len(ranges)
    memory = memory_of_stages(options, path, replace(info, n_blocks=1), ranges)
    found = []
    for i, (layers, one, limit) in enumerate(zip(ranges, memory, limits, strict=True)):
        step = step_bytes(info.spec, options.step_rows, layers.is_last, options.has_executor, n_ranks)
        if layers.is_last and info.drafter is not None:
            step += DRAFTER_PARTIAL_BYTES if info.drafter.cache_bytes and options.has_executor else 0
        name = f"stage {i}" if n_ranks == 1 else f"a rank of stage {i}"
        found.append(_DeviceBytes(name, one.weights, step, one.kv, limit))
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


def step_bytes(spec: ModelSpec, n_rows: int, is_last: bool, has_executor: bool, n_ranks: int = 1) -> int:
    """Estimate the bytes of a step of ``n_rows`` on a stage, or on the leader of its ranks, without weights and cache.

    A row takes the states of a layer in fp32. On the last stage it also takes its logits, and two arrays of their size
    while tokens are sampled. An executor also has partial softmaxes. One of several ranks also has its sums and those
    of the others, and room for all pairs of a row and an expert, because one rank may have them all.
    """
    own, n_states = RankShare(0, n_ranks).spec(spec), 4 if n_ranks == 1 else 6
    heads = (own.n_heads + 2 * own.n_kv_heads) * spec.head_dim
    mlp = 0 if spec.n_experts else 3 * spec.mlp_size // n_ranks
    row = 4 * (n_states * spec.hidden_size + 2 * heads + mlp)
    row += 3 * 4 * spec.vocab_size if is_last else 0
    pairs = spec.experts_per_token * min(n_rows, BUCKETS[-1])  # the executor's slices of a step
    pair_bytes = 4 * pairs * (3 * spec.mlp_size + spec.hidden_size)
    return n_rows * row + pair_bytes + (PARTIAL_BYTES if has_executor else 0)
