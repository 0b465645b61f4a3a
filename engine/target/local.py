"""The target: something that scores steps. Here, all its stages run one after the other in this process.

A pipeline behind channels offers the same ``step`` (see ``deployments``); the scheduler cannot tell them apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from engine.errors import ConfigError
from engine.kv.arena import KVArena
from engine.model.loader import load_config, load_shard, load_spec
from engine.model.ranges import LayerRange, split_layers
from engine.model.shard import ModelShard
from engine.model.sizes import StageMemory, stage_memory, weight_bytes
from engine.model.spec import ModelSpec
from engine.stage.activations import Activations
from engine.stage.artefacts import AttentionRows
from engine.stage.stage import Stage
from engine.step import Step, StepResult, WorkResult
from engine.target.info import TargetInfo, positions
from engine.target.options import TargetOptions
from engine.target.split import choose_ranges
from engine.target.split_options import SplitOptions


def resolve_dtype(name: str | None, spec: ModelSpec, device: str) -> torch.dtype:
    """The dtype to run in.

    Raises:
        ConfigError: ``name`` is none of the supported ones.
    """
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name is None:
        dtype: torch.dtype = torch.float32 if device == "cpu" else getattr(torch, spec.dtype)
        return dtype
    if name not in known:
        raise ConfigError(f"dtype is {name!r}; it must be one of {', '.join(known)}")
    return known[name]


def plan_cache(spec: ModelSpec, options: TargetOptions, dtype: torch.dtype) -> TargetInfo:
    """How many blocks the memory budget buys, and the longest text that fits.

    Raises:
        ConfigError: the budget does not hold a single useful sequence, or ``max_model_len`` exceeds the model's.
    """
    size = options.block_size
    per_block = KVArena.bytes_per_block(spec.n_layers, size, spec.n_kv_heads, spec.head_dim, dtype)
    n_blocks = options.kv_bytes // per_block
    if n_blocks < 4:
        raise ConfigError(f"kv_bytes is {options.kv_bytes}: a block takes {per_block} bytes, at least 4 are needed")
    if options.max_model_len is not None and not 1 <= options.max_model_len <= spec.max_positions:
        raise ConfigError(
            f"max_model_len is {options.max_model_len}; this model allows 1 to {spec.max_positions} tokens"
        )
    # One block is left for the tree behind the text.
    fits = (n_blocks - 1) * size
    return TargetInfo(spec, n_blocks, size, min(options.max_model_len or spec.max_positions, fits))


def stage_ranges(options: TargetOptions, path: Path, info: TargetInfo) -> list[LayerRange]:
    """The layers of every stage. With split ``measured``, call it where the stages' device is.

    Raises:
        ConfigError: an option is wrong, or the stages' memory does not hold weights and KV cache.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    if options.simulation is not None:
        return split_layers(info.spec.n_layers, options.stages)
    dtype = resolve_dtype(options.dtype, info.spec, options.device)
    wanted = SplitOptions(
        options.stages, options.split, options.stage_memory, options.quantization, options.cost_folder
    )
    device, kv = torch.device(options.device), kv_per_layer(info, dtype)
    return choose_ranges(path, info.spec, wanted, dtype=dtype, device=device, kv_per_layer=kv)


def memory_of_stages(
    options: TargetOptions, path: Path, info: TargetInfo, ranges: Sequence[LayerRange]
) -> list[StageMemory]:
    """What every stage will hold, weights and KV cache: for a log."""
    if options.simulation is not None:
        return []
    dtype = resolve_dtype(options.dtype, info.spec, options.device)
    weights = weight_bytes(load_config(path), info.spec, dtype, options.quantization)
    return stage_memory(weights, kv_per_layer(info, dtype), ranges)


def kv_per_layer(info: TargetInfo, dtype: torch.dtype) -> int:
    """Bytes of KV cache that a layer has; the stage with most layers has most of it."""
    spec = info.spec
    return info.n_blocks * KVArena.bytes_per_block(1, info.block_size, spec.n_kv_heads, spec.head_dim, dtype)


def load_layers(options: TargetOptions, path: Path, layers: LayerRange, info: TargetInfo) -> ModelShard:
    """A stage's part of a checkpoint, as the options want it.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
        ConfigError: an option is wrong.
    """
    return load_shard(
        path,
        layers,
        dtype=resolve_dtype(options.dtype, info.spec, options.device),
        device=torch.device(options.device),
        n_positions=positions(info),
        quantization=options.quantization,
    )


class LocalTarget:
    """A target whose stages live in this process."""

    def __init__(self, info: TargetInfo, shards: Sequence[ModelShard], reference: bool = False) -> None:
        self.info = info
        self._stages = [Stage(shard, info.n_blocks, info.block_size, reference) for shard in shards]

    @classmethod
    def load(cls, options: TargetOptions, path: Path) -> LocalTarget:
        """Load a checkpoint directory.

        Raises:
            UnsupportedModelError: the checkpoint cannot be run.
            ConfigError: an option is wrong.
        """
        spec = load_spec(path)
        info = plan_cache(spec, options, resolve_dtype(options.dtype, spec, options.device))
        shards = [load_layers(options, path, layers, info) for layers in stage_ranges(options, path, info)]
        return cls(info, shards, options.reference)

    @property
    def n_sequences(self) -> int:
        """Sequences any stage still holds state of."""
        return max(stage.n_sequences for stage in self._stages)

    def step(self, step: Step) -> StepResult:
        """Run one micro-batch through all stages."""
        began = time.perf_counter()
        if not step.work:
            for stage in self._stages:
                stage.admit(step)
            return StepResult(step.step_id, [], time.perf_counter() - began)
        activations: Activations | None = None
        for stage in self._stages:
            activations = stage.forward(step, activations)
        assert activations is not None
        results = self._stages[-1].verify(activations)
        rows: AttentionRows = {}
        for stage in self._stages:
            rows |= stage.attention(results)
        if rows:
            results = [attach_attention(result, rows) for result in results]
        return StepResult(step.step_id, results, time.perf_counter() - began)


def attach_attention(result: WorkResult, rows: AttentionRows) -> WorkResult:
    """A result with its attention rows, in the order in which the needs list the heads, whatever stage they are on."""
    mine = [rows[key] for key in sorted(rows) if key[0] == result.seq]
    return msgspec.structs.replace(result, attention=np.stack(mine)) if mine else result


def whole_range(spec: ModelSpec) -> LayerRange:
    """All layers in one stage."""
    return LayerRange(0, spec.n_layers, spec.n_layers)
