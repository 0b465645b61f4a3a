"""The Hugging Face config of a GGUF file: sizes, positions and sliding windows as the file states them."""

from __future__ import annotations

import math
from typing import Any

from engine.model.gguf.header import GgufHeader
from engine.model.gguf.llama3_rope import llama3_rope
from engine.model.gguf.settings import Metadata

ARCHITECTURES = {  # of the file -> Hugging Face's model type and class
    "llama": ("llama", "LlamaForCausalLM"),  # also Mistral's, which has this architecture in most files
    "mistral": ("mistral", "MistralForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
_GEMMA = "gemma3"
_GEMMA_27B_LAYERS = 62  # which scales its queries by hidden_size / heads; other sizes by the head's size
_SLIDING, _FULL = "sliding_attention", "full_attention"
_LARGEST = 1 << 31  # no size of a model is larger


def read_config(header: GgufHeader) -> dict[str, Any]:
    """What config.json holds for a file.

    Raises:
        UnsupportedModelError: the architecture, or how the file scales positions or attends, is not supported.
    """
    data = Metadata(header)
    if data.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise data.refusal(f"its architecture is {data.architecture!r}; supported are {known}")
    model_type, model_class = ARCHITECTURES[data.architecture]
    window = data.integer(".attention.sliding_window", None)
    if model_type == "llama" and window:
        model_type, model_class = ARCHITECTURES["mistral"]
    config = {
        "model_type": model_type,
        "architectures": [model_class],
        **_sizes(data, header),
        "rms_norm_eps": data.number(".attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": data.integer("tokenizer.ggml.bos_token_id", None),
        "eos_token_id": data.integer("tokenizer.ggml.eos_token_id", None),
        "pad_token_id": data.integer("tokenizer.ggml.padding_token_id", None),
        "dtype": "float32",
    }
    if data.architecture == _GEMMA:
        return config | _gemma(data, config, window)
    if window and model_type != "mistral":
        raise data.refusal(
            f"{data.architecture}.attention.sliding_window is {window}; only llama, mistral and gemma3 may have one"
        )
    config["rope_parameters"] = _rope(data, header, config)
    if model_type == "mistral":
        config["sliding_window"] = window or None
    if model_type == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    return config


def _sizes(data: Metadata, header: GgufHeader) -> dict[str, int]:
    heads = _size(data, ".attention.head_count")
    hidden = _size(data, ".embedding_length")
    head_dim = _size(data, ".attention.key_length", hidden // heads)
    for key in (".attention.value_length", ".rope.dimension_count"):
        if data.integer(key, head_dim) != head_dim:
            raise data.refusal(
                f"{data.architecture}{key} is {data.integer(key)}; it must be {head_dim}, the size of a head, because "
                f"heads of two sizes and partial rotary positions are not supported"
            )
    kv_heads = _size(data, ".attention.head_count_kv", heads)
    if head_dim % 2 or heads % kv_heads:
        raise data.refusal(
            f"it has {heads} heads of size {head_dim} and {kv_heads} key heads; the size must be even, and the number "
            f"of heads a multiple of that of key heads"
        )
    layers = _size(data, ".block_count")
    if layers > len(header.tensors):
        raise data.refusal(f"{data.architecture}.block_count is {layers}, but it has {len(header.tensors)} tensors")
    if "token_embd.weight" not in header.tensors:
        raise data.refusal("it lacks the tensor 'token_embd.weight'")
    return {
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": _size(data, ".feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": _size(data, ".context_length"),
    }


def _size(data: Metadata, key: str, default: int | None = None) -> int:
    value: int = data.integer(key) if default is None else data.integer(key, default)
    if not 1 <= value < _LARGEST:
        raise data.refusal(f"{data.architecture}{key} is {value}; it must be at least 1 and below {_LARGEST}")
    return value


def _gemma(data: Metadata, config: dict[str, Any], window: int | None) -> dict[str, Any]:
    if data.number(".attn_logit_softcapping", 0.0):
        raise data.refusal("gemma3.attn_logit_softcapping is set: the attention kernels have no soft-capping")
    layers = config["num_hidden_layers"]
    types = _layer_types(data, layers) if window else [_FULL] * layers
    scalar = config["hidden_size"] // config["num_attention_heads"]
    local = {"rope_type": "default", "rope_theta": data.number(".rope.freq_base_swa", 10_000.0)}
    return {
        "sliding_window": window or config["max_position_embeddings"],
        "layer_types": types,
        "rope_parameters": {_FULL: _scaled_rope(data, 1_000_000.0), _SLIDING: local},
        "query_pre_attn_scalar": scalar if layers == _GEMMA_27B_LAYERS else config["head_dim"],
        "final_logit_softcapping": data.number(".final_logit_softcapping", None) or None,
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _layer_types(data: Metadata, n_layers: int) -> list[str]:
    """One full layer follows five sliding ones, unless the file states a period or the type of every layer."""
    key = ".attention.sliding_window_pattern"
    if data.is_list(key):
        return [_SLIDING if slides else _FULL for slides in data.numbers(key, n_layers)]
    period = data.integer(key, 6)
    if period < 1:
        raise data.refusal(f"{data.architecture}{key} is {period}; it must be at least 1")
    return [_FULL if (layer + 1) % period == 0 else _SLIDING for layer in range(n_layers)]


def _rope(data: Metadata, header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    rope = _scaled_rope(data, 10_000.0)
    if "rope_freqs.weight" not in header.tensors:
        return rope
    factors = llama3_rope(header, data, rope["rope_theta"], config["head_dim"])
    if factors and rope["rope_type"] != "default":
        raise data.refusal(
            f"it has rope_freqs.weight and {data.architecture}.rope.scaling.type: only one of the two is supported"
        )
    return rope | factors


def _scaled_rope(data: Metadata, default_base: float) -> dict[str, Any]:
    base = data.number(".rope.freq_base", default_base)
    if base <= 1:
        raise data.refusal(f"{data.architecture}.rope.freq_base is {base}; it must be above 1")
    kind = data.text(".rope.scaling.type", "linear")
    factor = data.number(".rope.scaling.factor", 0.0) or data.number(".rope.scale_linear", 0.0) or 1.0
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": base}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": base, "factor": factor}
    if kind != "yarn":
        raise data.refusal(f"{data.architecture}.rope.scaling.type is {kind!r}; supported are none, linear and yarn")
    for key in (".rope.scaling.yarn_log_multiplier", ".rope.scaling.yarn_ext_factor"):
        if key in data:
            raise data.refusal(f"{data.architecture}{key} is set, which is not supported")
    attention = data.number(".rope.scaling.yarn_attn_factor", data.number(".rope.scaling.attn_factor", 1.0))
    return {
        "rope_type": "yarn",
        "rope_theta": base,
        "factor": factor,
        "original_max_position_embeddings": _size(data, ".rope.scaling.original_context_length"),
        "attention_factor": attention * (1 + 0.1 * math.log(max(factor, 1.0))),
        "beta_fast": data.number(".rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": data.number(".rope.scaling.yarn_beta_slow", 1.0),
    }
