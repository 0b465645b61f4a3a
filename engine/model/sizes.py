"""Bytes of a model's parts, from its config alone: nothing is read but ``config.json``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.model.meta_model import empty_model
from engine.model.partition import ModelParts
from engine.model.quantization import check_quantization
from engine.model.quantized import is_quantized
from engine.model.ranges import LayerRange
from engine.model.spec import ModelSpec

_SCALE = 4  # bytes of the float32 scale that each output of a matrix of one byte a weight has


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a stage holds."""

    layers: LayerRange
    weights: int  # bytes
    kv: int  # bytes

    def __str__(self) -> str:
        """As in a log: ``layers 0 to 19: 31.2 GiB of weights, 5 GiB of KV cache``."""
        weights, kv = self.weights / (1 << 30), self.kv / (1 << 30)
        first, last = self.layers.first, self.layers.last - 1
        return f"layers {first} to {last}: {weights:.4g} GiB of weights, {kv:.4g} GiB of KV cache"


def weight_bytes(config: Any, spec: ModelSpec, dtype: torch.dtype, quantization: str | None = None) -> ModelParts:
    """Bytes of every part's weights; those of one byte count as such.

    Raises:
        ConfigError: ``quantization`` is unknown, or not the checkpoint's.
    """
    return _parts(config, spec, dtype.itemsize, check_quantization(quantization, config) is not None)


def parameters(config: Any, spec: ModelSpec) -> ModelParts:
    """Number of parameters of every part."""
    return _parts(config, spec, 1, is_small=False)


def with_kv(weights: ModelParts, per_layer: int) -> ModelParts:
    """Weights and ``per_layer`` bytes of KV cache."""
    layers = tuple(one + per_layer for one in weights.layers)
    return ModelParts(layers, weights.embed, weights.head, weights.shared)


def stage_memory(weights: ModelParts, kv_per_layer: int, ranges: Sequence[LayerRange]) -> list[StageMemory]:
    """What each stage holds."""
    return [StageMemory(one, int(weights.of(one.first, one.last)), len(one) * kv_per_layer) for one in ranges]


def one_layer_config(config: Any, kind: str) -> Any:
    """The config of a model that has one layer of a kind, and is otherwise the same."""
    small = copy.deepcopy(config)
    small.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        small.layer_types = [kind]
    return small


def _parts(config: Any, spec: ModelSpec, size: int, is_small: bool) -> ModelParts:
    """Parameters times ``size``, those of matrices of one byte a weight excepted."""
    kinds = {kind: _layer(one_layer_config(config, kind), size, is_small) for kind in set(spec.layer_types)}
    matrix = spec.vocab_size * spec.hidden_size * size
    return ModelParts(
        layers=tuple(kinds[kind] for kind in spec.layer_types),
        embed=matrix,
        head=matrix + spec.hidden_size * size,
        shared=matrix if getattr(config, "tie_word_embeddings", False) else 0,
    )


def _layer(config: Any, size: int, is_small: bool) -> int:
    """The same of the only layer of a model."""
    model = empty_model(config)
    total = 0
    for name, weight in model.named_parameters():
        if name.startswith("model.layers."):
            is_matrix = is_small and is_quantized(model, name)
            total += weight.numel() + weight.shape[0] * _SCALE if is_matrix else weight.numel() * size
    return total
