"""A drafter over tokens alone is a small causal language model: its layers are compared with transformers' models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import load_network
from engine.drafter.networks.layer import Rotary
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import DrafterSpec, LayerShape
from engine.errors import ConfigError
from tests.support.tiny_drafters import LAYER

VOCAB, HIDDEN, LENGTH = 31, 16, 40
PLAIN: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
ROPES: dict[str, dict[str, str | float]] = {
    "llama with biases": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "qwen3": {},
}
NAMES = {  # Hugging Face's and ours
    **{f"self_attn.{part}_proj": part for part in "qkvo"},
    **{f"self_attn.{part}_norm": f"{part}_norm" for part in "qk"},
    **{f"mlp.{part}_proj": part for part in ("gate", "up", "down")},
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "ffn_norm",
}


def model_of(name: str) -> Any:
    torch.manual_seed(3)
    rope = {"rope_theta": 500.0, "rope_type": "default", **ROPES[name]}
    if name == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**PLAIN, rope_parameters=rope))
    else:
        model = LlamaForCausalLM(LlamaConfig(**PLAIN, attention_bias="biases" in name, rope_parameters=rope))
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and biases are constant at first
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    return model.eval()


def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads = [x.transpose(1, 2) for x in (query, key, value)]
    return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("name", ROPES)
def test_logits_equal_those_of_transformers(name: str) -> None:
    model, is_biased = model_of(name), "biases" in name
    shape = LayerShape(
        2, HIDDEN, ffn_size=24, n_heads=4, n_kv_heads=2, head_dim=8, rope_theta=500.0, qk_norm=name == "qwen3",
        rms_norm_eps=model.config.rms_norm_eps, attention_bias=is_biased, output_bias=is_biased,
        rope_scaling=tuple(ROPES[name].items()),
    )  # fmt: skip
    spec = DrafterSpec(
        "parallelspec-medusa", 1, HIDDEN, VOCAB, VOCAB, (), shape, n_drafts=3, own_head=True, reads_states=False
    )
    weights = model.state_dict()
    tensors = {
        f"layers.{i}.{ours}.{kind}": weights[f"model.layers.{i}.{theirs}.{kind}"]
        for i in range(2)
        for theirs, ours in NAMES.items()
        for kind in ("weight", "bias")
        if f"model.layers.{i}.{theirs}.{kind}" in weights
    }
    tensors |= {"norm.weight": weights["model.norm.weight"], "head.weight": weights["lm_head.weight"]}
    tensors["mask_embeddings"] = torch.zeros(2, HIDDEN)
    network = load_network(spec, tensors, TargetParts(embed=model.model.embed_tokens, head=model.lm_head))
    assert isinstance(network, PairNetwork)
    assert set(network.state_dict()) == set(tensors)
    tokens, positions = torch.randint(0, VOCAB, (2, LENGTH)), torch.arange(LENGTH).expand(2, -1)
    with torch.no_grad():
        outputs = network(network.embed_tokens(tokens), None, positions, attend)
        torch.testing.assert_close(network.logits(outputs), model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_rope_scaling_by_length_is_refused_and_angles_stay_exact_in_bfloat16() -> None:
    with pytest.raises(ConfigError, match="rope_type 'dynamic'"):
        Rotary(replace(LAYER, rope_scaling=(("rope_type", "dynamic"),)))
    position = torch.tensor([100_001])
    cos, _ = Rotary(LAYER)(position, torch.bfloat16)
    exact, _ = Rotary(LAYER)(position, torch.float64)
    torch.testing.assert_close(cos.double(), exact, rtol=0, atol=2e-2)
