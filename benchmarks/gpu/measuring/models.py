"""Sizes of the measured models, cut to what fits a device's memory, and models with random weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LlamaConfig

from benchmarks.gpu.setting import GpuSetting
from engine.model.build import random_model
from engine.model.matrices.quantization import FP8, INT8

BLOCK = 64  # tokens of a KV block


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a Llama."""

    name: str
    hidden: int
    intermediate: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of each weight matrix that a step reads; q, k, v are one, gate and up another."""
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return {
            "qkv": (queries + 2 * keys, self.hidden), "o": (self.hidden, queries),
            "gate_up": (2 * self.intermediate, self.hidden), "down": (self.hidden, self.intermediate),
            "head": (self.vocab, self.hidden),
        }  # fmt: skip

    def config_fields(self) -> dict[str, Any]:
        """Return the sizes as arguments of a Hugging Face config."""
        return {
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads, "num_key_value_heads": self.n_kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocab, "max_position_embeddings": 131072,
        }  # fmt: skip

    @property
    def layer_weights(self) -> int:
        """Weights in the matrices of one layer."""
        return sum(n_out * n_in for name, (n_out, n_in) in self.matrices().items() if name != "head")

    def bytes_read(self, dtype: torch.dtype, weight_bytes: int, cached_tokens: int = 0) -> int:
        """Return the bytes that a step must read: layers of ``weight_bytes`` a weight, head, keys and values."""
        keys = 2 * self.n_layers * self.n_kv_heads * self.head_dim * cached_tokens
        return weight_bytes * self.n_layers * self.layer_weights + dtype.itemsize * (self.vocab * self.hidden + keys)


LLAMA_8B = Geometry("8B", 4096, 14336, 32, 32, 8, 128, 128256)
LLAMA_70B = Geometry("70B", 8192, 28672, 80, 64, 8, 128, 128256)


def shrink(setting: GpuSetting, geometry: Geometry) -> Geometry:
    """Return the geometry or, in a tiny setting, a small one of the same proportions with at most two layers."""
    if not setting.is_tiny:
        return geometry
    groups, n_layers = geometry.n_heads // geometry.n_kv_heads, min(2, geometry.n_layers)
    return Geometry(f"tiny {geometry.name}", 32 * groups, 48 * groups, n_layers, 2 * groups, 2, 16, 300)


def fit_layers(geometry: Geometry, free_bytes: int, weight_bytes: int, cached_tokens: int = 0) -> Geometry:
    """Return the geometry with as many of its layers, of ``weight_bytes`` a weight, as fit next to the cache.

    Embedding, head and cache have two bytes a number; a fifth of ``free_bytes`` stays free for activations and graphs.
    Raises ValueError if not even one layer fits.
    """
    ends = 2 * 2 * geometry.vocab * geometry.hidden
    layer = weight_bytes * geometry.layer_weights + 4 * geometry.n_kv_heads * geometry.head_dim * cached_tokens
    fitting = (free_bytes * 4 // 5 - ends) // layer
    if fitting < 1:
        raise ValueError(f"{free_bytes / 1e9:.1f} GB are free; one layer of {geometry.name} with its ends needs more")
    return replace(geometry, n_layers=min(geometry.n_layers, fitting))


def make_llama(setting: GpuSetting, geometry: Geometry, is_int8: bool = False) -> Any:
    """Return a Hugging Face causal LM with seeded random weights; with ``is_int8`` layers have one byte a weight."""
    one_byte = FP8 if setting.is_tiny else INT8  # int8 on a CPU is another package's
    config = LlamaConfig(**geometry.config_fields(), tie_word_embeddings=False, bos_token_id=0, eos_token_id=None)
    return random_model(config, setting.dtype, setting.device, one_byte if is_int8 else None).eval()
