"""Computes what a model takes on its stages, weights and KV cache, from its ``config.json`` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.inputs.models import texts_path
from engine.errors import ConfigError
from engine.model.loader import load_config
from engine.model.matrices.quantization import check_quantization
from engine.model.partition import GIB, ModelParts, partition
from engine.model.ranges import LayerRange
from engine.model.share import WHOLE, RankShare, allowed_sizes
from engine.model.sizes import StageMemory, parameters, stage_memory, weight_bytes, with_kv
from engine.model.spec import ModelSpec, read_spec
from engine.target_model.memory import step_bytes
from engine.target_model.numerics import resolve_dtype
from engine.target_model.options import STEP_ROWS

DEVICE = "cuda"  # of plans: its default dtype is the checkpoint's


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model's parts, or of the parts of one of its tensor-parallel ranks."""

    spec: ModelSpec  # with the heads of a rank
    parameters: ModelParts  # a number for each part
    weights: ModelParts  # bytes of each part
    dtype: torch.dtype  # of unquantized weights and of the KV cache
    config: Any  # Hugging Face's
    quantization: str | None = None
    share: RankShare = WHOLE
    device: torch.device | None = None  # of the weights; None: a GPU

    @classmethod
    def of(
        cls,
        config: Any,
        dtype: torch.dtype,
        quantization: str | None = None,
        share: RankShare = WHOLE,
        device: torch.device | None = None,
    ) -> ModelSizes:
        """Return the sizes for a Hugging Face config; raise SpectraError if it or ``quantization`` is not supported."""
        spec = read_spec(config)
        weights = weight_bytes(config, spec, dtype, quantization, share, device)
        counts = parameters(config, spec, share)
        return cls(share.spec(spec), counts, weights, dtype, config, quantization, share, device)

    @property
    def n_parameters(self) -> int:
        return int(self.parameters.of(0, self.spec.n_layers))

    @property
    def active(self) -> ModelParts:
        """Parameters that a token uses: of a layer's experts only as many as its router chooses.

        Those of a rank are a mean over tokens, which choose all experts equally often.
        """
        return self.parameters.with_experts(self.spec.experts_per_token / max(1, self.spec.n_experts))

    @property
    def n_active(self) -> int:
        return int(self.active.of(0, self.spec.n_layers))

    @property
    def format(self) -> str:
        """Format of the layers' matrices: int4, int8, fp8, or the name of ``dtype``."""
        found = check_quantization(self.quantization, self.config)
        return str(self.dtype).removeprefix("torch.") if found is None else found.name

    @property
    def bytes(self) -> int:
        return int(self.weights.of(0, self.spec.n_layers))

    @property
    def kv_layer_bytes(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.spec.n_kv_heads * self.spec.head_dim * self.dtype.itemsize

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return self.spec.n_layers * self.kv_layer_bytes

    @property
    def rank_sizes(self) -> list[int]:
        """Numbers of tensor-parallel ranks that can share the model."""
        return allowed_sizes(self.spec)

    def of_rank(self, size: int) -> ModelSizes:
        """Return the sizes of the first of ``size`` ranks, which has most."""
        return ModelSizes.of(self.config, self.dtype, self.quantization, RankShare(0, size), self.device)

    def split(self, stages: int, kv_bytes: int = 0, limit: int | None = None) -> list[LayerRange]:
        """Return the layers of each stage, as ``--layer-split auto`` splits them.

        A stage may take ``limit`` bytes (None: no limit) of weights and of the KV cache, ``kv_bytes`` over all stages.
        Raises ConfigError if there are more stages than layers, or no split fits.
        """
        costs = ModelParts(self.parameters.layers, 0, self.parameters.head)
        held = with_kv(self.weights, kv_bytes // self.spec.n_layers)
        return partition(costs, held, stages, None if limit is None else (limit,) * stages)

    def stages(self, ranges: Sequence[LayerRange], kv_bytes: int) -> list[StageMemory]:
        """Return the weights and the share of the KV cache (``kv_bytes`` over all stages) of each stage."""
        return stage_memory(self.weights, kv_bytes // self.spec.n_layers, ranges)

    def step_bytes(self, is_last: bool) -> int:
        """Return about how much the largest step takes on a stage, which ``--kv-gib auto`` leaves free for it."""
        whole = read_spec(self.config)
        return step_bytes(whole, STEP_ROWS, is_last, has_executor=True, n_ranks=self.share.size)

    def kv_room(self, ranges: Sequence[LayerRange], usable: int) -> int:
        """Return the bytes of KV cache over all stages that ``--kv-gib auto`` allocates of ``usable`` bytes a stage.

        The stage with the least room per layer decides, since each token is in all layers.
        """
        rooms = (
            (usable - one.weights - self.step_bytes(one.layers.is_last)) // len(one.layers)
            for one in self.stages(ranges, 0)
        )
        return max(0, min(rooms)) * self.spec.n_layers


def sizes_of(
    model: str,
    revision: str | None,
    dtype: str | None,
    quantization: str | None,
    device: torch.device | None = None,
) -> ModelSizes:
    """Return the sizes of a model: of a ``config.json``, its folder, or a hub id. Reads no weights.

    ``device`` is that of the weights; None: a GPU. Raises SpectraError if there is no such model, or it, ``dtype`` or
    ``quantization`` is not supported.
    """
    file = Path(model).expanduser()
    path = file.parent if file.name == "config.json" and file.is_file() else texts_path(model, revision)
    config = load_config(path)
    found = resolve_dtype(dtype, read_spec(config), DEVICE)
    return ModelSizes.of(config, found, quantization, device=device)


def usable_bytes(gpu_memory_gib: float, share: float) -> int:
    """Return the bytes of a GPU for weights, KV cache and a step; raise ConfigError if a value is out of range."""
    if not 0 < gpu_memory_gib <= 1 << 20:
        raise ConfigError(f"--gpu-memory-gib is {gpu_memory_gib}; it must be above 0 and at most {1 << 20}")
    if not 0 < share <= 1:
        raise ConfigError(f"--usable is {share}; it must be above 0 and at most 1")
    return int(gpu_memory_gib * GIB * share)
