"""Random tensors and configs of tiny drafters, for the layouts in ``drafters``."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.model.spec import ModelSpec

FFN = 40
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
DRAFTED = 11  # ids of the small vocabularies
MASK = 5
BLOCK = 6
RANK = 3
TARGET = ModelSpec(
    family="llama", n_layers=12, n_heads=4, n_kv_heads=2, head_dim=8, hidden_size=32, vocab_size=97, max_positions=512,
    layer_types=("full_attention",) * 12, eos_ids=(2,), dtype="float32", logit_softcap=None,
)  # fmt: skip


@dataclass
class Public:
    """A checkpoint as it is published."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    file: str = "model.safetensors"

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.file.endswith(".safetensors"):
            save_file({name: tensor.contiguous() for name, tensor in self.tensors.items()}, folder / self.file)
        else:
            torch.save(self.tensors, folder / self.file)
        return folder


@dataclass
class Maker:
    """Random tensors for a target, the same ones for the same names and shapes."""

    target: ModelSpec
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, *shape: int) -> None:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}{shape}".encode()))
        centre = 1.0 if "norm" in name else 0.0
        self.tensors[name] = centre + 0.2 * torch.randn(shape, generator=generator)

    def ends(self, **shapes: tuple[int, ...]) -> None:
        for name, shape in shapes.items():
            self.add(f"{name}.weight", *shape)

    def layer(self, prefix: str, norms: tuple[str, ...], read: int = 1, bias: bool = False, qk: bool = False) -> None:
        """One layer; ``read``: how many times the width its queries, keys and values read."""
        hidden, queries, keys = self.target.hidden_size, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            self.add(f"{prefix}self_attn.{part}_proj.weight", rows, read * hidden)
            if bias:
                self.add(f"{prefix}self_attn.{part}_proj.bias", rows)
        self.add(f"{prefix}self_attn.o_proj.weight", hidden, queries)
        self.add(f"{prefix}mlp.gate_proj.weight", FFN, hidden)
        self.add(f"{prefix}mlp.up_proj.weight", FFN, hidden)
        self.add(f"{prefix}mlp.down_proj.weight", hidden, FFN)
        for norm in (*norms, "post_attention_layernorm"):
            self.add(f"{prefix}{norm}.weight", hidden)
        for part in "qk" if qk else "":
            self.add(f"{prefix}self_attn.{part}_norm.weight", HEAD_DIM)

    def vocabulary(self) -> None:
        """Tables of a small vocabulary: every eighth token."""
        ids = torch.arange(DRAFTED) * 8 + 1
        self.tensors["d2t"] = ids - torch.arange(DRAFTED)
        self.tensors["t2d"] = torch.zeros(self.target.vocab_size, dtype=torch.bool).index_fill(0, ids, True)

    def layers(self, n_layers: int = 1, **more: Any) -> dict[str, Any]:
        """Fields of the layers."""
        return {
            "model_type": "llama",
            "vocab_size": self.target.vocab_size,
            "hidden_size": self.target.hidden_size,
            "intermediate_size": FFN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "num_hidden_layers": n_layers,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "max_position_embeddings": 256,
            **more,
        }
