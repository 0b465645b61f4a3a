"""Reads the Hugging Face config of a GGUF file: sizes, rotary positions and sliding windows as the file states them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.model.families import FAMILIES, GGUF_FAMILIES, Family
from engine.model.gguf.header import GgufHeader
from engine.model.gguf.metadata import GgufMetadata

_SLIDING, _FULL = "sliding_attention", "full_attention"
_LOW_FREQ_FACTOR, _HIGH_FREQ_FACTOR, _ORIGINAL_CONTEXT = 1.0, 4.0, 8192  # of every published Llama 3
_ROPE_TOLERANCE = 1e-3  # relative; files store the factors in fp32


def read_config(header: GgufHeader) -> dict[str, Any]:
    """Return what config.json would contain for a file.

    Raises:
        UnsupportedModelError: the architecture, the scaling of positions, or the attention is not supported.
    """
    data = GgufMetadata(header)
    window = data.integer(".attention.sliding_window", None)
    family = _find_family(data, window)
    config = {
        "model_type": family.model_type,
        "architectures": [family.model_class],
        **_sizes(data, header),
        "rms_norm_eps": data.number(".attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": data.integer("tokenizer.ggml.bos_token_id", None),
        "eos_token_id": data.integer("tokenizer.ggml.eos_token_id", None),
        "pad_token_id": data.integer("tokenizer.ggml.padding_token_id", None),
        "dtype": "float32",
    }
    if data.number(".attn_logit_softcapping", 0.0):
        raise data.refusal(
            f"{data.full_key('.attn_logit_softcapping')} is set: the attention kernels have no soft-capping"
        )
    if family.has_rope_per_layer_type:
        return config | _layers_of_two_types(data, family, config, window) | family.gguf.settings
    config["rope_parameters"] = _rope(data, header, family, config)
    if family.gguf.has_window:
        config["sliding_window"] = window or None
    if family.has_optional_biases:
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    return config | family.gguf.settings


def _find_family(data: GgufMetadata, window: int | None) -> Family:
    family = GGUF_FAMILIES.get(data.architecture)
    if family is None:
        raise data.refusal(f"its architecture is {data.architecture!r}; supported are {', '.join(GGUF_FAMILIES)}")
    if window and family.gguf.windowed_type is not None:
        return FAMILIES[family.gguf.windowed_type]
    if window and not family.gguf.has_window:
        allowed = [name for name, one in GGUF_FAMILIES.items() if one.gguf.has_window or one.gguf.windowed_type]
        key, names = data.full_key(".attention.sliding_window"), f"{', '.join(allowed[:-1])} and {allowed[-1]}"
        raise data.refusal(f"{key} is {window}; only {names} may have one")
    return family


def _sizes(data: GgufMetadata, header: GgufHeader) -> dict[str, int]:
    heads = data.size(".attention.head_count")
    hidden = data.size(".embedding_length")
    head_dim = data.size(".attention.key_length", hidden // heads)
    for key in (".attention.value_length", ".rope.dimension_count"):
        if data.integer(key, head_dim) != head_dim:
            raise data.refusal(
                f"{data.architecture}{key} is {data.integer(key)}; it must be {head_dim}, the size of a head, because "
                f"heads of two sizes and partial rotary positions are not supported"
            )
    kv_heads = data.size(".attention.head_count_kv", heads)
    if head_dim % 2 or heads % kv_heads:
        raise data.refusal(
            f"it has {heads} heads of size {head_dim} and {kv_heads} key heads; the size must be even, and the number "
            f"of heads a multiple of that of key heads"
        )
    layers = data.size(".block_count")
    if layers > len(header.tensors):
        raise data.refusal(f"{data.architecture}.block_count is {layers}, but it has {len(header.tensors)} tensors")
    if "token_embd.weight" not in header.tensors:
        raise data.refusal("it lacks the tensor 'token_embd.weight'")
    return {
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": data.size(".feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": data.size(".context_length"),
    }


def _layers_of_two_types(
    data: GgufMetadata, family: Family, config: dict[str, Any], window: int | None
) -> dict[str, Any]:
    n_layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    is_scaled_by_hidden = n_layers == family.gguf.n_layers_scaled_by_hidden
    base = data.number(".rope.freq_base_swa", family.gguf.rope_theta_sliding)
    return {
        "sliding_window": window or config["max_position_embeddings"],
        "layer_types": _layer_types(data, family, n_layers) if window else [_FULL] * n_layers,
        "rope_parameters": {
            _FULL: _scaled_rope(data, family.gguf.rope_theta),
            _SLIDING: {"rope_type": "default", "rope_theta": base},
        },
        "query_pre_attn_scalar": (
            config["hidden_size"] // config["num_attention_heads"] if is_scaled_by_hidden else head_dim
        ),
        "final_logit_softcapping": data.number(".final_logit_softcapping", None) or None,
    }


def _layer_types(data: GgufMetadata, family: Family, n_layers: int) -> list[str]:
    """Return the type of every layer: the file's list, or by a period, whose last layer attends to everything."""
    key = ".attention.sliding_window_pattern"
    if data.is_list(key):
        return [_SLIDING if slides else _FULL for slides in data.numbers(key, n_layers)]
    period = data.integer(key, family.gguf.sliding_period)
    if period < 1:
        raise data.refusal(f"{data.full_key(key)} is {period}; it must be at least 1")
    return [_FULL if (layer + 1) % period == 0 else _SLIDING for layer in range(n_layers)]


def _rope(data: GgufMetadata, header: GgufHeader, family: Family, config: dict[str, Any]) -> dict[str, Any]:
    rope = _scaled_rope(data, family.gguf.rope_theta)
    if "rope_freqs.weight" not in header.tensors:
        return rope
    factors = _llama3_rope(header, data, rope["rope_theta"], config["head_dim"])
    if factors and rope["rope_type"] != "default":
        raise data.refusal(
            f"it has rope_freqs.weight and {data.architecture}.rope.scaling.type: only one of the two is supported"
        )
    return rope | factors


def _scaled_rope(data: GgufMetadata, default_base: float) -> dict[str, Any]:
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
        "original_max_position_embeddings": data.size(".rope.scaling.original_context_length"),
        "attention_factor": attention * (1 + 0.1 * math.log(max(factor, 1.0))),
        "beta_fast": data.number(".rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": data.number(".rope.scaling.yarn_beta_slow", 1.0),
    }


def _llama3_rope(header: GgufHeader, data: GgufMetadata, base: float, head_dim: int) -> dict[str, Any]:
    """Return the config of Llama 3's scaling with the factors in ``rope_freqs.weight``; empty if all are 1."""
    info = header.tensors["rope_freqs.weight"]
    if info.type != 0 or info.shape != (head_dim // 2,):
        raise data.refusal(f"rope_freqs.weight has the shape {[*info.shape]}; it must be F32 [{head_dim // 2}]")
    factors = np.fromfile(header.path, "<f4", head_dim // 2, offset=info.first).astype(np.float64)
    if np.allclose(factors, 1.0, rtol=_ROPE_TOLERANCE):
        return {}
    factor = float(factors.max())
    for context in {data.integer(".rope.scaling.original_context_length", _ORIGINAL_CONTEXT), _ORIGINAL_CONTEXT}:
        if np.allclose(factors, _llama3_factors(base, head_dim, factor, context), rtol=_ROPE_TOLERANCE):
            return {
                "rope_type": "llama3",
                "factor": round(factor, 3),
                "low_freq_factor": _LOW_FREQ_FACTOR,
                "high_freq_factor": _HIGH_FREQ_FACTOR,
                "original_max_position_embeddings": context,
            }
    raise data.refusal(
        f"rope_freqs.weight scales positions in another way than Llama 3 (low_freq_factor {_LOW_FREQ_FACTOR:g}, "
        f"high_freq_factor {_HIGH_FREQ_FACTOR:g}, original context {_ORIGINAL_CONTEXT})"
    )


def _llama3_factors(base: float, head_dim: int, factor: float, context: int) -> np.ndarray[Any, Any]:
    """Return the divisor of each frequency in Llama 3, ``[head_dim / 2]``."""
    frequencies = base ** (-np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip(
        (context * frequencies / (2 * math.pi) - _LOW_FREQ_FACTOR) / (_HIGH_FREQ_FACTOR - _LOW_FREQ_FACTOR), 0, 1
    )
    divided: np.ndarray[Any, Any] = 1 / ((1 - smooth) / factor + smooth)
    return divided
