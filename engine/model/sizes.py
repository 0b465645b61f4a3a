"""Computes the bytes of a model's parts from its config alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from engine.model.build import empty_model, one_layer_config
from engine.model.matrices.linears import is_layer_matrix
from engine.model.matrices.quantization import check_quantization
from engine.model.partition import ModelParts
from engine.model.ranges import LayerRange
from engine.model.share import WHOLE, RankShare
from engine.model.spec import ModelSpec

_SCALE = 4  # bytes of the fp32 scale of each output of a matrix with one byte a weight


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of a stage, or of the first of its ranks, which has most."""

    layers: LayerRange
    weights: int  # bytes
    kv: int  # bytes
    n_ranks: int = 1

    def __str__(self) -> str:
        """Return, for a log, ``layers 0 to 19: 31.2 GiB of weights, 5 GiB of KV cache``."""
        weights, kv = self.weights / (1 << 30), self.kv / (1 << 30)
        first, last = self.layers.first, self.layers.last - 1
        ranks = "" if self.n_ranks == 1 else f", each of {self.n_ranks} ranks"
        return f"layers {first} to {last}{ranks}: {weights:.4g} GiB of weights, {kv:.4g} GiB of KV cache"


def weight_bytes(
    config: Any, spec: ModelSpec, dtype: torch.dtype, quantization: str | None = None, share: RankShare = WHOLE
) -> ModelParts:
    """Return the bytes of every part's weights, or of a rank's share of them.

    Raises:
        ConfigError: ``quantization`` is unknown, or not the checkpoint's.
    """
    return _parts(config, spec, dtype.itemsize, check_quantization(quantization, config) is not None, share)


def parameters(config: Any, spec: ModelSpec, share: RankShare = WHOLE) -> ModelParts:
    """Return the number of parameters of every part, or of a rank's share of them."""
    return _parts(config, spec, 1, is_small=False, share=share)


def with_kv(weights: ModelParts, per_layer: int) -> ModelParts:
    """Add ``per_layer`` bytes of KV cache to every layer."""
    return replace(weights, layers=tuple(one + per_layer for one in weights.layers))


def stage_memory(weights: ModelParts, kv_per_layer: int, ranges: Sequence[LayerRange]) -> list[StageMemory]:
    n = weights.n_ranks
    return [StageMemory(one, int(weights.of(one.first, one.last)), len(one) * kv_per_layer, n) for one in ranges]


def _parts(config: Any, spec: ModelSpec, size: int, is_small: bool, share: RankShare) -> ModelParts:
    """Return parameters times ``size``; if ``is_small``, matrices have one byte a weight and their scales."""
    types = set(spec.layer_types)
    kinds = {kind: _layer(one_layer_config(config, kind), spec, size, is_small, share) for kind in types}
    row = spec.hidden_size * size
    head = -(-spec.vocab_size // share.size) * row
    return ModelParts(
        layers=tuple(kinds[kind] for kind in spec.layer_types),
        embed=spec.vocab_size * row,
        head=head + row,
        shared=head if getattr(config, "tie_word_embeddings", False) else 0,
        n_ranks=share.size,
    )


def _layer(config: Any, spec: ModelSpec, size: int, is_small: bool, share: RankShare) -> int:
    model = empty_model(config)
    total = 0
    for name, weight in model.named_parameters():
        if name.startswith("model.layers."):
            part, shape = share.part(name, weight.shape, spec), [*weight.shape]
            if part is not None:
                shape[part.dim] = part.last - part.first
            is_matrix = is_small and is_layer_matrix(model, name)
            total += prod(shape) + shape[0] * _SCALE if is_matrix else prod(shape) * size
    return total
