"""The shape of a drafter's transformer layers, from Hugging Face's words for it and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.drafter.checkpoint.configs import LayerConfig
from engine.drafter.spec import LayerShape
from engine.errors import UnsupportedModelError

_SLIDING = "sliding_attention"
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # whose frequencies do not depend on the text's length


def layer_shape(folder: Path, config: LayerConfig, tensors: Mapping[str, Tensor]) -> LayerShape:
    """Of the layers that a config describes; whether they have biases and norms of heads their tensors tell.

    Raises:
        UnsupportedModelError: names what the layers have that ours lack.
    """
    theta, scaling = _rope(folder, config)
    if config.hidden_act not in (None, "silu"):
        raise UnsupportedModelError(f"{folder}: hidden_act is {config.hidden_act!r}; drafters run with silu")
    return LayerShape(
        n_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_size=config.intermediate_size,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        rope_theta=theta,
        rms_norm_eps=config.rms_norm_eps,
        rope_scaling=scaling,
        attention_bias="layers.0.q.bias" in tensors,
        output_bias="layers.0.o.bias" in tensors,
        qk_norm="layers.0.q_norm.weight" in tensors,
        window=_window(folder, config),
    )


def layer_fields(shape: LayerShape) -> dict[str, Any]:
    """The same in Hugging Face's words."""
    kind = "full_attention" if shape.window is None else _SLIDING
    return {
        "model_type": "qwen3" if shape.qk_norm else "llama",
        "num_hidden_layers": shape.n_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": dict(shape.rope_scaling) or None,
        "hidden_act": "silu",
        "attention_bias": shape.attention_bias,
        "sliding_window": shape.window,
        "layer_types": [kind] * shape.n_layers,
        "tie_word_embeddings": False,
    }


def _window(folder: Path, config: LayerConfig) -> int | None:
    kinds = set((config.layer_types or [])[: config.num_hidden_layers])
    if len(kinds) > 1:
        raise UnsupportedModelError(
            f"{folder}: layer_types is {config.layer_types}; drafters run whose layers are all of one type"
        )
    return config.sliding_window if kinds == {_SLIDING} else None


def _rope(folder: Path, config: LayerConfig) -> tuple[float, tuple[tuple[str, str | float], ...]]:
    """Theta, and what else the rotary frequencies depend on."""
    given = {**(config.rope_scaling or {}), **(config.rope_parameters or {})}
    if any(isinstance(one, dict) for one in given.values()):  # by type of layer
        given = given.get((config.layer_types or ["full_attention"])[0]) or {}
    kind = str(given.get("rope_type", given.get("type", "default")))
    if kind not in _ROPE_TYPES:
        raise UnsupportedModelError(f"{folder}: rope_type is {kind!r}; supported are {', '.join(_ROPE_TYPES)}")
    partial = given.get("partial_rotary_factor", config.partial_rotary_factor)
    if partial not in (None, 1):
        raise UnsupportedModelError(f"{folder}: partial_rotary_factor is {partial}; drafters turn whole heads")
    theta = float(given.get("rope_theta") or config.rope_theta or 10000)
    if kind == "default":
        return theta, ()
    scaling = {"original_max_position_embeddings": config.max_position_embeddings, **given, "rope_type": kind}
    skipped = ("type", "rope_theta", "partial_rotary_factor")
    plain = {name: value for name, value in scaling.items() if isinstance(value, str | int | float)}
    return theta, tuple((name, value) for name, value in sorted(plain.items()) if name not in skipped)
