"""Computes the bytes and parameters of a model's parts from its config alone."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from engine.model.build import empty_model, one_layer_config
from engine.model.families import get_family
from engine.model.matrices.layout import matches, plain_patterns
from engine.model.matrices.linears import is_layer_matrix
from engine.model.matrices.part import INNER, WeightPart
from engine.model.matrices.quantization import Quantization, check_quantization, quantization_values
from engine.model.matrices.stored import DEFAULT_GROUP
from engine.model.partition import ModelParts
from engine.model.ranges import LayerRange
from engine.model.share import WHOLE, RankShare, expert_number
from engine.model.spec import ModelSpec

_SCALE = 4  # bytes of an fp32 scale: of an output, or of a block of fp8 numbers
_GROUP_SCALE = 2  # bytes of the scale of a group of integers, whose dtype only the checkpoint's files tell
_ZERO = 2  # bytes of a group's zero in memory


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
    config: Any,
    spec: ModelSpec,
    dtype: torch.dtype,
    quantization: str | None = None,
    share: RankShare = WHOLE,
    device: torch.device | None = None,
) -> ModelParts:
    """Return the bytes of every part's weights, or of a rank's share of them.

    Args:
        config: the checkpoint's Hugging Face config.
        spec: of the whole model.
        dtype: of weights that are not quantized.
        quantization: as for ``check_quantization``.
        share: of the rank.
        device: of the weights; None: a GPU. A CPU widens numbers with scales of groups to ``dtype``.

    Raises:
        ConfigError: ``quantization`` is unknown, or not the checkpoint's, or its package is not installed.
    """
    return _parts(config, spec, _Sizes(dtype.itemsize, check_quantization(quantization, config, device)), share)


def parameters(config: Any, spec: ModelSpec, share: RankShare = WHOLE) -> ModelParts:
    """Return the number of parameters of every part, or of a rank's share of them."""
    return _parts(config, spec, _Sizes(1), share)


def with_kv(weights: ModelParts, per_layer: int) -> ModelParts:
    """Add ``per_layer`` bytes of KV cache to every layer."""
    return replace(weights, layers=tuple(one + per_layer for one in weights.layers))


def stage_memory(weights: ModelParts, kv_per_layer: int, ranges: Sequence[LayerRange]) -> list[StageMemory]:
    n = weights.n_ranks
    return [StageMemory(one, int(weights.of(one.first, one.last)), len(one) * kv_per_layer, n) for one in ranges]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Computes the size of a tensor: its parameters, or bytes."""

    item: int  # of a number that is not quantized
    quantization: Quantization | None = None  # of the layers' matrices

    def tensor(self, shape: Sequence[int], part: WeightPart | None) -> int:
        return prod(_own_shape(shape, part)) * self.item

    def matrix(self, shape: Sequence[int], part: WeightPart | None) -> int:
        """Return the size of a matrix of a decoder layer.

        Where ranks cut groups of inputs, another rank may have one group more for every output than the first.
        """
        if self.quantization is None or self.quantization.widens:
            return self.tensor(shape, part)
        n_out, n_in = _own_shape(shape, part)
        layout = self.quantization.layout
        if layout is None or not layout.is_grouped:
            return n_out * (n_in + _SCALE)
        size = layout.group or DEFAULT_GROUP
        first = part.first if part is not None and part.dim == INNER else 0
        n_groups = n_out * (-(-(first + n_in) // size) - first // size)  # all are full in memory
        scale = _SCALE if layout.is_float else _GROUP_SCALE
        return n_groups * (size * layout.bits // 8 + scale + (_ZERO if layout.zero else 0))


def _own_shape(shape: Sequence[int], part: WeightPart | None) -> list[int]:
    own = [*shape]
    if part is not None:
        own[part.dim] = part.last - part.first
    return own


def _parts(config: Any, spec: ModelSpec, sizes: _Sizes, share: RankShare) -> ModelParts:
    row = spec.hidden_size * sizes.item
    head = -(-spec.vocab_size // share.size) * row
    models = {kind: empty_model(one_layer_config(config, kind)) for kind in set(spec.layer_types)}
    patterns = [] if sizes.quantization is None else plain_patterns(quantization_values(config))
    found: dict[tuple[str, frozenset[str]], tuple[int, int]] = {}  # layers of a type differ by matrices left out
    layers = []
    for i, kind in enumerate(spec.layer_types):
        # A config may list hundreds of patterns, a few for each layer.
        own = [one for one in patterns if f"layers.{i}." in one or "layers." not in one or one.startswith("re:")]
        plain = _plain_matrices(own, models[kind], spec, i)
        if (kind, plain) not in found:
            found[kind, plain] = _layer(models[kind], spec, sizes, share, plain)
        layers.append(found[kind, plain])
    return ModelParts(
        layers=tuple(map(sum, layers)),
        embed=spec.vocab_size * row,
        head=head + row,
        shared=head if getattr(config, "tie_word_embeddings", False) else 0,
        n_ranks=share.size,
        experts=tuple(experts for _, experts in layers) if spec.n_experts else (),
    )


def _plain_matrices(patterns: Sequence[str], model: Any, spec: ModelSpec, number: int) -> frozenset[str]:
    """Return the parameters of a layer, as ``model`` names those of its one layer, that the checkpoint leaves plain.

    All experts of a layer are taken to be like the first.
    """
    family, plain = get_family(spec.family), set()
    for name, _ in model.named_parameters() if patterns else ():
        if expert_number(name) in (None, 0) and is_layer_matrix(model, name):
            module = name.removesuffix(".weight").replace("layers.0.", f"layers.{number}.", 1)
            names = module, family.stored_name(f"{module}.").rstrip(".")
            if any(matches(pattern, one) for pattern in patterns for one in names):
                plain.add(name)
    return frozenset(plain)


def _layer(model: Any, spec: ModelSpec, sizes: _Sizes, share: RankShare, plain: Container[str]) -> tuple[int, int]:
    """Return the size of a layer without its experts, and that of the experts."""
    found = [0, 0]
    for name, weight in model.named_parameters():
        if name.startswith("model.layers.") and share.has(name, spec):
            expert = expert_number(name)
            alike = name if expert is None else name.replace(f".experts.{expert}.", ".experts.0.")
            size_of = sizes.matrix if is_layer_matrix(model, name) and alike not in plain else sizes.tensor
            found[expert is not None] += size_of(weight.shape, share.part(name, weight.shape, spec))
    return found[0], found[1]
