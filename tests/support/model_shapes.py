"""A public model by its shape alone: no checkpoint is needed to plan for it."""

from __future__ import annotations

from transformers import LlamaConfig


def llama_70b() -> LlamaConfig:
    """Return the configuration of Llama 3.3 70B."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
    )
