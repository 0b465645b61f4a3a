"""Checks whether a model loads and fits: weights and KV cache against a GPU's or this machine's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil
import torch

from app.config.serve import ServeConfig
from app.doctor import Finding
from app.inputs.devices import AUTO, check_cache
from app.inputs.models import is_on_hub, read_checkpoint, texts_path
from app.planning.sizes import ModelSizes, sizes_of, usable_bytes
from engine.errors import ConfigError, SpectraError
from engine.model.checkpoint_files import has_weight_files
from engine.model.partition import GIB
from engine.model.ranges import LayerRange
from engine.model.share import check_ranks
from engine.target_model.options import CPU_CACHE

SPREAD = "more stages or ranks, a smaller --kv-gib or --quantization int8 or fp8 take less"
SMALLER = "a smaller --kv-gib or --quantization int8 takes less"  # stages of one machine share its memory


def check_fit(config: ServeConfig, gpu_memory_gib: float | None, share: float) -> Iterator[Finding]:
    """Yield whether the model's files are usable and its stages fit.

    Args:
        config: model, stages, ranks, KV cache and precision are read.
        gpu_memory_gib: memory of one GPU; None: that of this machine's GPUs, or its main memory if it has none.
        share: of a GPU's memory, for weights and KV cache.
    """
    memory = gpu_memory_gib or _smallest_gpu_gib()
    limit = None if memory is None else usable_bytes(memory, share)
    files = _check_files(config)
    yield files
    ranks = config.tensor_parallel
    try:
        dtype = config.dtype or ("float32" if limit is None else None)
        device = torch.device("cpu") if limit is None else None
        sizes = sizes_of(config.model, None, dtype, config.quantization, device)
        check_ranks(ranks, sizes.spec)
        sizes = sizes.of_rank(ranks)
        if config.kv_gib != AUTO:
            kv_bytes = int(float(config.kv_gib) * GIB) // ranks
        elif limit is None:
            kv_bytes = CPU_CACHE // ranks
        else:
            kv_bytes = sizes.kv_room(sizes.split(config.stages), limit)
        stages = sizes.stages(_split(sizes, config.stages, kv_bytes, limit), kv_bytes)
    except SpectraError as error:
        if str(error) != files.says:
            yield Finding("stages", "problem", str(error))
        return
    for i, stage in enumerate(stages):
        yield Finding(f"stage {i}", "ok", f"{stage}; each of {ranks} ranks" if ranks > 1 else str(stage))
    if gpu_memory_gib is None:
        try:
            check_cache(config.kv_gib, "cpu" if limit is None else "cuda")
        except ConfigError as error:
            yield Finding("memory", "problem", str(error))
            return
    needs, what = [stage.weights + stage.kv for stage in stages], "weights and KV cache"
    if limit is None:  # the processes share the machine's memory
        needed, remedy, where = ranks * sum(needs), SMALLER, "available memory of this machine"
        limit = psutil.virtual_memory().available
    else:
        if config.kv_gib == AUTO:
            needs = [n + sizes.step_bytes(stage.layers.is_last) for n, stage in zip(needs, stages, strict=True)]
            what = "weights, KV cache and a step"
        needed, remedy, where = max(needs), SPREAD, f"{share:.0%} of a GPU's {memory:g} GiB"
    says = f"{needed / GIB:.2f} GiB of {what}; {where}: {limit / GIB:.2f} GiB"
    yield Finding("memory", "ok", says) if needed <= limit else Finding("memory", "problem", says, remedy)


def _smallest_gpu_gib() -> float | None:
    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.mem_get_info(i)[1] for i in range(torch.cuda.device_count())) / GIB


def _check_files(config: ServeConfig) -> Finding:
    """Check the checkpoint as ``spectra serve`` does, except for weights that are not downloaded yet."""
    from app.composition.sampling import sampling_defaults  # loads the HTTP schemas

    try:
        path = texts_path(config.model)
        has_weights = not is_on_hub(config.model) or has_weight_files(path)
        read_checkpoint(path, has_weights=has_weights)
        sampling_defaults(config)
    except SpectraError as error:
        return Finding("model", "problem", str(error))
    if has_weights:
        return Finding("model", "ok", str(path))
    return Finding("model", "warning", f"{path} lacks weight files", "they are fetched when a server starts")


def _split(sizes: ModelSizes, stages: int, kv_bytes: int, limit: int | None) -> list[LayerRange]:
    """Return a split that fits into the limit if there is one, or the split without a limit."""
    with contextlib.suppress(ConfigError):
        return sizes.split(stages, kv_bytes, limit)
    return sizes.split(stages, kv_bytes)
