"""Whether a model fits: weights of each stage and the KV cache, against a GPU or this machine's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from app.config.errors import config_of
from app.doctor.findings import OK, PROBLEM, WARNING, Finding
from app.doctor.machine import gpu_memory_gib
from app.inputs.devices import check_cache
from app.inputs.models import is_on_hub, read_checkpoint, texts_path
from app.planning.sizes import ModelSizes, sizes_of, usable_bytes
from engine.errors import ConfigError, SpectraError
from engine.model.checkpoint_files import has_weight_files
from engine.model.partition import GIB
from engine.model.ranges import LayerRange
from engine.target_model.options import CPU_CACHE

SPREAD = "more stages, a smaller --kv-gib or --quantization int8 or fp8 take less"
SMALLER = "a smaller --kv-gib or --quantization int8 takes less"  # stages of one machine share its memory


@dataclass(frozen=True, slots=True)
class ServingSetup:
    """What would be served.

    Attributes:
        model, quantization, generation_config: as ``spectra serve`` takes them.
        stages: of its pipeline.
        kv_gib: over all stages, or ``auto``.
        gpu_memory_gib: of one GPU; None: that of this machine's GPUs, or its memory if it has none.
        dtype: None: the checkpoint's on a GPU, float32 on a CPU.
    """

    model: str
    stages: int
    kv_gib: float | str
    gpu_memory_gib: float | None
    dtype: str | None
    quantization: str | None
    generation_config: str = "auto"

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise ConfigError(f"--stages is {self.stages}; it must be at least 1")
        if not isinstance(self.kv_gib, str) and not 0 < self.kv_gib <= 1 << 20:
            raise ConfigError(f"--kv-gib is {self.kv_gib:g}; it must be above 0 and at most {1 << 20}, or auto")


def fit(asked: ServingSetup, share: float) -> Iterator[Finding]:
    """Whether its files are there and its stages have room; ``share`` of a GPU is for weights and KV cache."""
    memory = asked.gpu_memory_gib or gpu_memory_gib()
    dtype = asked.dtype or ("float32" if memory is None else None)
    files = _files(asked.model, asked.generation_config)
    yield files
    try:
        sizes = sizes_of(asked.model, None, dtype, asked.quantization)
        limit = None if memory is None else usable_bytes(memory, share)
        kv_bytes = _cache(sizes, asked, limit)
        held = sizes.stages(_split(sizes, asked.stages, kv_bytes, limit), kv_bytes)
    except SpectraError as error:
        if str(error) != files.says:
            yield Finding("stages", PROBLEM, str(error))
        return
    for i, one in enumerate(held):
        yield Finding(f"stage {i}", OK, str(one))
    try:
        if asked.gpu_memory_gib is None:
            check_cache(asked.kv_gib, "cpu" if memory is None else "cuda")
    except ConfigError as error:
        yield Finding("memory", PROBLEM, str(error))
        return
    needs = [one.weights + one.kv for one in held]
    if limit is not None and isinstance(asked.kv_gib, str):
        needs = [one.weights + one.kv + sizes.step_bytes(one.layers.is_last) for one in held]
        yield _room(max(needs), limit, f"{share:.0%} of a GPU's {memory:g} GiB", SPREAD, "weights, KV cache and a step")
    elif limit is None:  # stages share the machine's memory
        yield _room(sum(needs), psutil.virtual_memory().available, "this machine's memory that is available", SMALLER)
    else:
        yield _room(max(needs), limit, f"{share:.0%} of a GPU's {memory:g} GiB", SPREAD)


def _cache(sizes: ModelSizes, asked: ServingSetup, limit: int | None) -> int:
    """Bytes of KV cache over all stages."""
    if not isinstance(asked.kv_gib, str):
        return int(asked.kv_gib * GIB)
    if limit is None:
        return CPU_CACHE
    return sizes.kv_room(sizes.split(asked.stages), limit)


def _files(model: str, generation_config: str) -> Finding:
    """Check the checkpoint as ``spectra serve`` does, without weights that the hub still has."""
    from app.composition.sampling import sampling_defaults  # loads the HTTP schemas

    try:
        path = texts_path(model)
        is_fetched = not is_on_hub(model) or has_weight_files(path)
        read_checkpoint(path, has_weights=is_fetched)
        sampling_defaults(config_of({"model": model, "generation_config": generation_config}))
    except SpectraError as error:
        return Finding("model", PROBLEM, str(error))
    if is_fetched:
        return Finding("model", OK, str(path))
    return Finding("model", WARNING, f"{path} lacks weight files", "they are fetched when a server starts")


def _split(sizes: ModelSizes, stages: int, kv_bytes: int, limit: int | None) -> list[LayerRange]:
    """With room for all stages if there is such a split, else the one without limits."""
    if limit is not None:
        with contextlib.suppress(ConfigError):
            return sizes.split(stages, kv_bytes, limit)
    return sizes.split(stages, kv_bytes)


def _room(needed: int, limit: int, where: str, remedy: str, what: str = "weights and KV cache") -> Finding:
    says = f"{needed / GIB:.2f} GiB of {what}; {where}: {limit / GIB:.2f} GiB"
    if needed <= limit:
        return Finding("memory", OK, says)
    return Finding("memory", PROBLEM, says, remedy)
