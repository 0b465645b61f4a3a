"""Tiny models whose matrices are wide enough for groups and blocks of scales, dense and with experts."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

WIDTH = 128
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral")
_OWN: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@cache
def wide_model(family: str, inner: int) -> Any:
    """Return a seeded fp32 model of two layers with an MLP of width ``inner``, cached: tests must not change it."""
    config = AutoConfig.for_model(
        family,
        vocab_size=97,
        hidden_size=WIDTH,
        intermediate_size=inner,
        moe_intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.15,  # wide: logits of a tiny random model must not tie within fp32 noise
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **_OWN.get(family, {}),
    )
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(config)
    # Hugging Face starts norms and biases at constants: random ones make a wrong norm or bias visible.
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    return model.float().eval()
