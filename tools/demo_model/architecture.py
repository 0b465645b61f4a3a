"""The two demo models: their shapes, and their files in Hugging Face layout."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.demo_model.tokenizer import (
    BOS_ID,
    END_ID,
    MAX_POSITIONS,
    PAD_ID,
    VOCABULARY,
)


@dataclass(frozen=True)
class Shape:
    """What differs between the two models."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    dropout: float = 0.0  # of attention weights
    kv_heads: int = 1
    head_dim: int = 64


SHAPES = {
    "target": Shape(layers=8, hidden=192, heads=3, ffn=512),
    "drafter": Shape(layers=2, hidden=128, heads=2, ffn=384),
}


def build(shape: Shape) -> LlamaForCausalLM:
    """A freshly initialised model, fp32, on the CPU."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_POSITIONS,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attention_dropout=shape.dropout,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )
    return LlamaForCausalLM(config)


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write a bf16 copy of `model`, which itself stays fp32."""
    shipped = copy.deepcopy(model).to(torch.bfloat16)
    shipped.generation_config = GenerationConfig(bos_token_id=BOS_ID, eos_token_id=END_ID, pad_token_id=PAD_ID)
    shipped.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # written as 0600, which an installed package must not be


def load(folder: Path) -> LlamaForCausalLM:
    """A finished model, fp32, frozen: what another is distilled from."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval().requires_grad_(False)
