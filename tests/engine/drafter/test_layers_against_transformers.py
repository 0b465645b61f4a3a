"""A drafter over tokens alone, all of its layers normed, is a small causal language model: transformers has it too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import load_network
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.networks.rotary import Rotary
from engine.drafter.spec import DrafterSpec, LayerShape
from engine.errors import ConfigError
from tests.support.dense_rows import causal, dense_attend
from tests.support.tiny_drafters import LAYER

VOCAB, HIDDEN, LENGTH = 31, 16, 40
COMMON = {
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
ROPES: dict[str, dict[str, str | float | bool]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}
PLACES = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "ffn_norm",
}


def models() -> dict[str, Any]:
    torch.manual_seed(3)
    llamas = {
        f"llama, {kind} rope": LlamaForCausalLM(
            LlamaConfig(**COMMON, rope_parameters={"rope_theta": 500.0, "rope_type": "default", **rope})
        )
        for kind, rope in ROPES.items()
    }
    biased = LlamaForCausalLM(LlamaConfig(**COMMON, attention_bias=True, rope_parameters={"rope_theta": 500.0}))
    qwen2 = Qwen2ForCausalLM(Qwen2Config(**{**COMMON, "head_dim": 4}, rope_parameters={"rope_theta": 500.0}))
    qwen3 = Qwen3ForCausalLM(Qwen3Config(**COMMON, rope_parameters={"rope_theta": 500.0}))
    return {**llamas, "llama with biases": biased, "qwen2": qwen2, "qwen3": qwen3}


MODELS = models()


def spec_of(model: Any) -> DrafterSpec:
    config, names = model.config, model.state_dict().keys()
    rope = {k: v for k, v in config.rope_parameters.items() if k != "rope_theta" and isinstance(v, str | float | int)}
    shape = LayerShape(
        n_layers=2,
        hidden_size=HIDDEN,
        ffn_size=24,
        n_heads=4,
        n_kv_heads=2,
        head_dim=config.head_dim if "head_dim" in config.to_dict() else 4,
        rope_theta=500.0,
        rms_norm_eps=config.rms_norm_eps,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in names,
        output_bias="model.layers.0.self_attn.o_proj.bias" in names,
        qk_norm="model.layers.0.self_attn.q_norm.weight" in names,
        rope_scaling=tuple(rope.items()),
    )
    return DrafterSpec(
        method="parallelspec-medusa",
        generation=1,
        target_hidden_size=HIDDEN,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        taps=(),
        layers=shape,
        n_drafts=3,
        own_head=True,
        reads_states=False,
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_same_scores(name: str) -> None:
    model = MODELS[name].eval()
    for _, parameter in model.named_parameters():
        if parameter.dim() == 1:  # norms begin as ones, biases as zeros
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    weights = model.state_dict()
    tensors = {
        f"layers.{i}.{ours}.{kind}": weights[f"model.layers.{i}.{theirs}.{kind}"]
        for i in range(2)
        for theirs, ours in PLACES.items()
        for kind in ("weight", "bias")
        if f"model.layers.{i}.{theirs}.{kind}" in weights
    }
    tensors |= {"norm.weight": weights["model.norm.weight"], "head.weight": weights["lm_head.weight"]}
    tensors["mask_embeddings"] = torch.zeros(2, HIDDEN)
    target = TargetParts(embed=model.model.embed_tokens, head=model.lm_head)
    network = load_network(spec_of(model), tensors, target)
    assert isinstance(network, PairNetwork)
    assert set(network.state_dict()) == set(tensors)  # the target's parts are not the drafter's
    tokens = torch.randint(0, VOCAB, (2, LENGTH))
    positions = torch.arange(LENGTH).expand(2, -1)
    with torch.no_grad():
        wanted = model(tokens).logits
        outputs = network(network.embed_tokens(tokens), None, positions, dense_attend(causal(LENGTH)))
    torch.testing.assert_close(network.logits(outputs), wanted, rtol=1e-4, atol=1e-4)


def test_frequencies_that_change_with_the_length_are_refused() -> None:
    scaled = LayerShape(
        **{**{k: getattr(LAYER, k) for k in LAYER.__slots__}, "rope_scaling": (("rope_type", "dynamic"),)}
    )
    with pytest.raises(ConfigError, match="rope_type 'dynamic'"):
        Rotary(scaled)


def test_a_cast_of_weights_leaves_angles_exact() -> None:
    rotary = Rotary(LAYER)
    position = torch.tensor([100_001])
    cos, _ = rotary(position, torch.bfloat16)
    exact, _ = rotary(position, torch.float64)
    torch.testing.assert_close(cos.double(), exact, rtol=0, atol=2e-2)
