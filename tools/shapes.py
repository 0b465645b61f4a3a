"""Public models by their shapes alone, for tables about hardware that no checkpoint is needed for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import LlamaConfig, Qwen3Config


def llama_8b() -> Any:
    """Llama 3.1 8B."""
    return _llama(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32)


def llama_70b() -> Any:
    """Llama 3.3 70B."""
    return _llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)


def llama_405b() -> Any:
    """Llama 3.1 405B."""
    return _llama(hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128)


def qwen_32b() -> Any:
    """Qwen3 32B."""
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=5120,
        intermediate_size=25600,
        num_hidden_layers=64,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=False,
    )


def _llama(**shape: int) -> Any:
    fixed = {"vocab_size": 128256, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072}
    return LlamaConfig(**fixed, **shape, tie_word_embeddings=False)


SHAPES: Mapping[str, Callable[[], Any]] = {
    "Llama 3.1 8B": llama_8b,
    "Qwen3 32B": qwen_32b,
    "Llama 3.3 70B": llama_70b,
    "Llama 3.1 405B": llama_405b,
}
