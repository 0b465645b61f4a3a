"""Computes the bytes of a model's parts from its config alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.model.build import empty_model, one_layer_config
from engine.model.linears import is_layer_matrix
from engine.model.partition import ModelParts
from engine.model.quantization import check_quantization
from engine.model.ranges import LayerRange
from engine.model.spec import ModelSpec

_SCALE = 4  # bytes of the fp32 scale of each output of a matrix with one byte a weight


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of a stage."""

    layers: LayerRange
    weights: int  # bytes
    kv: int  # bytes

    def __str__(self) -> str:
        """Return, for a log, ``layers 0 to 19: 31.2 GiB of weights, 5 GiB of KV cache``."""
        weights, kv = self.weights / (1 << 30), self.kv / (1 << 30)
        first, last = self.layers.first, self.layers.last - 1
        return f"layers {first} to {last}: {weights:.4g} GiB of weights, {kv:.4g} GiB of KV cache"


def weight_bytes(config: Any, spec: ModelSpec, dtype: torch.dtype, quantization: str | None = None) -> ModelParts:
    """Return the bytes of every part's weights.

    Raises:
        ConfigError: ``quantization`` is unknown, or not the checkpoint's.
    """
    return _parts(config, spec, dtype.itemsize, check_quantization(quantization, config) is not None)


def parameters(config: Any, spec: ModelSpec) -> ModelParts:
    """Return the number of parameters of every part."""
    return _parts(config, spec, 1, is_small=False)


def with_kv(weights: ModelParts, per_layer: int) -> ModelParts:
    """Add ``per_layer`` bytes of KV cache to every layer."""
    layers = tuple(one + per_layer for one in weights.layers)
    return ModelParts(layers, weights.embed, weights.head, weights.shared)


def stage_memory(weights: ModelParts, kv_per_layer: int, ranges: Sequence[LayerRange]) -> list[StageMemory]:
    return [StageMemory(one, int(weights.of(one.first, one.last)), len(one) * kv_per_layer) for one in ranges]


def _parts(config: Any, spec: ModelSpec, size: int, is_small: bool) -> ModelParts:
    """Return parameters times ``size``; if ``is_small``, matrices have one byte a weight and their scales."""
    kinds = {kind: _layer(one_layer_config(config, kind), size, is_small) for kind in set(spec.layer_types)}
    matrix = spec.vocab_size * spec.hidden_size * size
    return ModelParts(
        layers=tuple(kinds[kind] for kind in spec.layer_types),
        embed=matrix,
        head=matrix + spec.hidden_size * size,
        shared=matrix if getattr(config, "tie_word_embeddings", False) else 0,
    )


def _layer(config: Any, size: int, is_small: bool) -> int:
    model = empty_model(config)
    total = 0
    for name, weight in model.named_parameters():
        if name.startswith("model.layers."):
            is_matrix = is_small and is_layer_matrix(model, name)
            total += weight.numel() + weight.shape[0] * _SCALE if is_matrix else weight.numel() * size
    return total
