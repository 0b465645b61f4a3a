"""The bare work of a step, without an engine: fixed shapes, a cache of its own, ready for a CUDA graph.

Two of them. ``layers`` runs Hugging Face's own layers; ``products`` only what cannot be left out: the matrix products
(q, k and v as one, gate and up as one) and attention. Both attend without a mask, to the context and all rows of the
own sequence, which is what a flash kernel reads, and both read every weight, key and value once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from benchmarks.gpu.measuring.geometry import SPREAD, Geometry
from benchmarks.gpu.setting import Setting

NAME = "bare"


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """``query`` ``[batch, n_heads, n, d]``, ``keys`` and ``values`` ``[batch, n_kv_heads, n_keys, d]`` -> like query.

    Query heads of one key head become rows of one: every kernel reads the keys once.
    """
    batch, n_heads, n, head_dim = query.shape
    n_kv_heads = keys.shape[1]
    folded = query.reshape(batch, n_kv_heads, n_heads // n_kv_heads * n, head_dim)
    return F.scaled_dot_product_attention(folded, keys, values, scale=scale).reshape(batch, n_heads, n, head_dim)


class Cache:
    """Keys and values of a batch: ``[n_layers, 2, batch, n_kv_heads, context + rows, head_dim]``, all zero."""

    def __init__(self, setting: Setting, geometry: Geometry, batch: int, rows: int, context: int) -> None:
        shape = (geometry.n_layers, 2, batch, geometry.n_kv_heads, context + rows, geometry.head_dim)
        self._data = torch.zeros(shape, dtype=setting.dtype, device=setting.device)
        self._context = context

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the rows' own, ``[batch, n_kv_heads, rows, head_dim]``; returns all keys and values of the layer."""
        keys, values = self._data[layer]
        keys[:, :, self._context :] = key
        values[:, :, self._context :] = value
        return keys, values


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    bare: Cache,
    **_: object,
) -> tuple[Tensor, None]:
    keys, values = bare.update(int(module.layer_idx), key, value)  # type: ignore[arg-type]
    return attend(query, keys, values, scaling).transpose(1, 2), None


AttentionInterface.register(NAME, _attention)


@contextmanager
def bare_attention(model: Any) -> Iterator[None]:
    """While it lasts, the model's layers attend to a ``Cache``; the engine's attention is put back then."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


class Layers:
    """Hugging Face's layers, embedding, norm and head; call it inside ``bare_attention``."""

    def __init__(self, setting: Setting, geometry: Geometry, model: Any, batch: int, rows: int, context: int) -> None:
        self._model = model
        self._cache = Cache(setting, geometry, batch, rows, context)
        self._tokens = torch.zeros(batch, rows, dtype=torch.int64, device=setting.device)
        positions = torch.arange(context, context + rows, device=setting.device)[None]
        like = torch.empty(0, dtype=setting.dtype, device=setting.device)
        self._rotary = model.model.rotary_emb(like, positions)

    @torch.inference_mode()
    def __call__(self) -> Tensor:
        """Best next token of every row, ``[batch, rows]``."""
        inner = self._model.model
        hidden = inner.embed_tokens(self._tokens)
        for layer in inner.layers:
            hidden = layer(hidden, position_embeddings=self._rotary, bare=self._cache)
        best: Tensor = self._model.lm_head(inner.norm(hidden)).argmax(-1)
        return best


class Weights:
    """Random matrices of a geometry, one set a layer, and a head: what ``Products`` reads."""

    def __init__(self, setting: Setting, geometry: Geometry) -> None:
        shapes = geometry.matrices()
        head = shapes.pop("head")
        self.layers = [
            {name: self._random(setting, shape) for name, shape in shapes.items()} for _ in range(geometry.n_layers)
        ]
        self.head = self._random(setting, head)

    @staticmethod
    def _random(setting: Setting, shape: tuple[int, int]) -> Tensor:
        return torch.empty(shape, dtype=setting.dtype, device=setting.device).normal_(0, SPREAD)


class Products:
    """The matrix products and attention of a step, and nothing between them."""

    def __init__(
        self, setting: Setting, geometry: Geometry, weights: Weights, batch: int, rows: int, context: int
    ) -> None:
        self._geometry, self._weights, self._shape = geometry, weights, (batch, rows)
        self._cache = Cache(setting, geometry, batch, rows, context)
        self._hidden = torch.zeros(batch * rows, geometry.hidden, dtype=setting.dtype, device=setting.device).normal_()

    @torch.inference_mode()
    def __call__(self) -> Tensor:
        """Something of the logits' shape, ``[batch * rows, vocab]``."""
        g, hidden = self._geometry, self._hidden
        n_queries, n_keys = g.n_heads * g.head_dim, g.n_kv_heads * g.head_dim
        for layer, matrices in enumerate(self._weights.layers):
            parts = torch.split(F.linear(hidden, matrices["qkv"]), [n_queries, n_keys, n_keys], dim=-1)
            query, key, value = (part.view(*self._shape, -1, g.head_dim).transpose(1, 2) for part in parts)
            keys, values = self._cache.update(layer, key, value)
            out = attend(query, keys, values, g.head_dim**-0.5).transpose(1, 2).reshape(len(hidden), n_queries)
            gate_up = F.linear(F.linear(out, matrices["o"]), matrices["gate_up"])
            hidden = F.linear(gate_up[:, : g.intermediate], matrices["down"])
        return F.linear(hidden, self._weights.head)
