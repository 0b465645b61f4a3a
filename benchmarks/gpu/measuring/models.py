"""Sizes of the measured models, cut to what fits a device's memory, and models with random weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from benchmarks.gpu.setting import GpuSetting
from engine.model.build import empty_model
from engine.model.linears import ScaledLinear, is_layer_matrix

BLOCK = 64  # tokens of a KV block
SPREAD = 0.02  # standard deviation of a weight


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
        of_layer = {"qkv": (queries + 2 * keys, self.hidden), "o": (self.hidden, queries)}
        of_mlp = {"gate_up": (2 * self.intermediate, self.hidden), "down": (self.hidden, self.intermediate)}
        return of_layer | of_mlp | {"head": (self.vocab, self.hidden)}

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


def make_random_model(geometry: Geometry, device: torch.device, dtype: torch.dtype, is_int8: bool = False) -> Any:
    """Return a Hugging Face causal LM on ``device``, its matrices normal with ``SPREAD`` and its norms 1.

    The same geometry gives the same weights on the same kind of device. With ``is_int8`` the matrices of the layers are
    random bytes with one scale per output; they never exist in full precision.
    """
    model, random = empty_model(_make_config(geometry), dtype), torch.Generator(device).manual_seed(0)
    for name, parameter in list(model.named_parameters()):
        owner, _, last = name.rpartition(".")
        if is_int8 and is_layer_matrix(model, name):
            weight = torch.randint(-127, 128, parameter.shape, dtype=torch.int8, device=device, generator=random)
            scales = torch.full((len(weight),), SPREAD * 3**0.5 / 127, device=device)
            model.set_submodule(owner, ScaledLinear(weight, scales, None))
            continue
        value: Tensor = torch.ones(parameter.shape, dtype=dtype, device=device)
        value = value.normal_(0, SPREAD, generator=random) if value.dim() > 1 else value
        setattr(model.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
    rotary = model.model.rotary_emb
    for name, buffer in rotary.named_buffers(recurse=False):
        rotary._buffers[name] = buffer.to(device)
    return model.eval()


def _make_config(geometry: Geometry) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=geometry.hidden, intermediate_size=geometry.intermediate, num_hidden_layers=geometry.n_layers,
        num_attention_heads=geometry.n_heads, num_key_value_heads=geometry.n_kv_heads, head_dim=geometry.head_dim,
        vocab_size=geometry.vocab, max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        bos_token_id=0, eos_token_id=None,  # texts reach the length that was requested
    )  # fmt: skip
