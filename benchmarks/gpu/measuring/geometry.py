"""Sizes of the targets that are measured. Imports no transformers: products are measured in processes of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.gpu.setting import Setting

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
        """(outputs, inputs) of each weight matrix that a step reads, q, k and v as one and gate and up as one."""
        keys = self.n_kv_heads * self.head_dim
        return {
            "qkv": (self.n_heads * self.head_dim + 2 * keys, self.hidden),
            "o": (self.hidden, self.n_heads * self.head_dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
            "head": (self.vocab, self.hidden),
        }

    def bytes_read(self, dtype: torch.dtype) -> int:
        """Bytes of weights that a step reads: all matrices, but of the embedding only some rows."""
        sizes = {name: outputs * inputs for name, (outputs, inputs) in self.matrices().items()}
        head = sizes.pop("head")
        return dtype.itemsize * (head + self.n_layers * sum(sizes.values()))


LLAMA_8B = Geometry("8B", 4096, 14336, 32, 32, 8, 128, 128256)
LLAMA_70B = Geometry("70B", 8192, 28672, 80, 64, 8, 128, 128256)


def sized(setting: Setting, geometry: Geometry) -> Geometry:
    """The geometry, or, in a tiny setting, a small one of the same shape and at most two layers."""
    if not setting.tiny:
        return geometry
    groups = geometry.n_heads // geometry.n_kv_heads
    layers = min(2, geometry.n_layers)
    return Geometry(f"tiny {geometry.name}", 16 * 2 * groups, 64 * groups, layers, 2 * groups, 2, 16, 512)
