"""Tiny random models as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.support.tiny_models import tiny_tokenizer

Type = GGMLQuantizationType
WRITTEN = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")  # types that the library quantises
RANDOM = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")  # written as random blocks
SCALES = {  # bytes of a block where its fp16 scales are
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
WINDOW = 24
LONG = 40  # tokens, more than the window

_COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}
_GEMMA_ROPE = {"full_attention": _LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
_GEMMA_LAYERS = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}


def _config(family: str) -> Any:
    common = _COMMON | {"vocab_size": len(tiny_tokenizer())}
    if family == "llama":
        return LlamaConfig(
            **common | {"max_position_embeddings": 32768}, num_key_value_heads=2, rope_parameters=_LLAMA3
        )
    if family == "mistral":
        return MistralConfig(**common, num_key_value_heads=1, head_dim=64, sliding_window=WINDOW)
    if family == "qwen2":
        return Qwen2Config(**common, num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=_YARN)
    if family == "qwen3":
        return Qwen3Config(**common, num_key_value_heads=2, head_dim=128)
    return Gemma3TextConfig(
        **common | {"num_hidden_layers": 7},
        num_key_value_heads=2,
        head_dim=128,
        sliding_window=WINDOW,
        layer_types=_GEMMA_LAYERS,
        rope_parameters=_GEMMA_ROPE,
        final_logit_softcapping=30.0,
        query_pre_attn_scalar=128,
    )


_CLASSES = {
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "gemma3_text": Gemma3ForCausalLM,
}
FAMILIES = tuple(_CLASSES)


@cache
def model_for_gguf(family: str) -> Any:
    """A seeded fp32 model whose rows suit every tensor type, cached: tests must not change it."""
    torch.manual_seed(3)
    model = _CLASSES[family](_config(family)).float().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=0.0 if family == "gemma3_text" else 1.0, std=0.2)
    return model


def write_gguf(
    path: Path, family: str, kind: str = "F32", changed: dict[str, Any] | None = None, without: str = ""
) -> dict[str, np.ndarray[Any, Any]]:
    """Write the model of a family; returns the weights that the file holds, by Hugging Face's names.

    Args:
        path: of the file.
        family: one of ``FAMILIES``.
        kind: type of the matrices; one of ``RANDOM`` gives them random values.
        changed: metadata that are other than the model's; None leaves a key out.
        without: a tensor that is left out.
    """
    model = model_for_gguf(family)
    writer = GGUFWriter(path, _ARCHITECTURES[family])
    tied = model.config.tie_word_embeddings
    for key, value in (_metadata(family) | tokenizer_metadata() | (changed or {})).items():
        _add(writer, key, value)
    random, held = np.random.default_rng(5), {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        stored_name, weights = _stored(family, name, parameter.numpy())
        raw, type_ = _raw(weights, kind, random)
        held[name] = _restored(family, name, dequantize(raw, type_).reshape(weights.shape))
        if stored_name != without:
            writer.add_tensor(stored_name, raw, raw_dtype=type_)
    if family == "llama":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def tokenizer_metadata() -> dict[str, Any]:
    """The tiny byte-level tokenizer."""
    tokenizer = tiny_tokenizer()
    backend = tokenizer.backend_tokenizer
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    import json

    merges = json.loads(backend.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token, _ in vocabulary],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": tokenizer.chat_template,
    }


def _metadata(family: str) -> dict[str, Any]:
    config, arch = model_for_gguf(family).config, _ARCHITECTURES[family]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    found["rope.freq_base"] = float(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if family in ("mistral", "gemma3_text"):
        found["attention.sliding_window"] = config.sliding_window
    if family == "gemma3_text":
        found["final_logit_softcapping"] = config.final_logit_softcapping
    return {f"{arch}.{key}": value for key, value in found.items()}


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GEMMA_NAMES = _NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _stored(family: str, name: str, weights: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]]:
    """A tensor as the file names and holds it."""
    names = _GEMMA_NAMES if family == "gemma3_text" else _NAMES
    owner, _, kind = name.rpartition(".")
    layer = ""
    if owner.startswith("model.layers."):
        number, owner = owner.removeprefix("model.layers.").split(".", 1)
        layer = f"blk.{number}."
    if family == "gemma3_text" and "norm" in owner:
        weights = weights + 1
    heads = _heads(family, name)
    if heads:  # as the converter permutes them
        shape = weights.shape
        weights = weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    return f"{layer}{names[owner]}.{kind}", weights


def _restored(family: str, name: str, weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Weights of the file as the model has them."""
    if family == "gemma3_text" and "norm" in name:
        return weights - np.float32(1)
    heads, shape = _heads(family, name), weights.shape
    if not heads:
        return weights
    return weights.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def _heads(family: str, name: str) -> int:
    """Heads of a tensor whose rows the converter permutes; 0: of no such tensor."""
    config = model_for_gguf(family).config
    if family not in ("llama", "mistral") or ("q_proj" not in name and "k_proj" not in name):
        return 0
    return int(config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)


def _raw(weights: np.ndarray[Any, Any], kind: str, random: np.random.Generator) -> tuple[np.ndarray[Any, Any], Type]:
    """A tensor's bytes; vectors are always F32."""
    type_ = Type[kind] if weights.ndim > 1 else Type.F32
    if kind not in RANDOM or weights.ndim == 1:
        return quantize(np.ascontiguousarray(weights), type_), type_
    n_weights, n_bytes = GGML_QUANT_SIZES[type_]
    blocks = random.integers(0, 256, (weights.size // n_weights, n_bytes), dtype=np.uint8)
    for first in SCALES[kind]:
        scales = random.uniform(0.001, 0.01, len(blocks)).astype("<f2")
        blocks[:, first : first + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(weights.shape[0], -1), type_


def _llama3_factors(model: Any) -> np.ndarray[Any, Any]:
    """What llama.cpp's converter writes for Llama 3."""
    config, rope = model.config, model.config.rope_parameters
    size = config.hidden_size // config.num_attention_heads
    frequencies = rope["rope_theta"] ** -(np.arange(0, size, 2) / size)
    context, factors = rope["original_max_position_embeddings"], []
    low, high = context / rope["low_freq_factor"], context / rope["high_freq_factor"]
    for length in 2 * np.pi / frequencies:
        if length < high:
            factors.append(1.0)
        elif length > low:
            factors.append(rope["factor"])
        else:
            smooth = (context / length - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)
