"""Translates Hugging Face's fields for transformer layers into a ``LayerShape`` and back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.drafter.spec import ROPE_TYPES, LayerShape
from engine.errors import UnsupportedModelError

Decoded = TypeVar("Decoded")
_SLIDING = "sliding_attention"


class LayerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that describe a drafter's transformer layers; defaults apply where a public file omits the field."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_hidden_layers: int = 1
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    hidden_act: str | None = None
    max_position_embeddings: int = 2048
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    sliding_window: int | None = None
    layer_types: list[str] | None = None


def decode(folder: Path, config: dict[str, Any], kind: type[Decoded]) -> Decoded:
    """Fields of a config.json as a ``kind``.

    Raises:
        UnsupportedModelError: a field is missing or has a wrong type; names it.
    """
    try:
        return msgspec.convert(config, kind)
    except msgspec.ValidationError as error:
        raise UnsupportedModelError(f"{folder / 'config.json'} does not describe a known drafter: {error}") from error


def read_layer_shape(folder: Path, config: LayerConfig, tensor_names: Collection[str]) -> LayerShape:
    """The layers that a config describes; public names of tensors show which biases and norms they have.

    Raises:
        UnsupportedModelError: a field has an unsupported value; names both.
    """
    theta, scaling = _read_rope(folder, config)
    if config.hidden_act not in (None, "silu"):
        raise UnsupportedModelError(f"{folder}: hidden_act is {config.hidden_act!r}; it must be 'silu'")
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
        attention_bias="layers.0.self_attn.q_proj.bias" in tensor_names,
        output_bias="layers.0.self_attn.o_proj.bias" in tensor_names,
        qk_norm="layers.0.self_attn.q_norm.weight" in tensor_names,
        window=_read_window(folder, config),
    )


def write_layer_shape(shape: LayerShape) -> dict[str, Any]:
    """Hugging Face's fields for these layers."""
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


def _read_window(folder: Path, config: LayerConfig) -> int | None:
    kinds = set((config.layer_types or [])[: config.num_hidden_layers])
    if len(kinds) > 1:
        raise UnsupportedModelError(
            f"{folder}: layer_types is {config.layer_types}; a drafter's layers must be all of one type"
        )
    return config.sliding_window if kinds == {_SLIDING} else None


def _read_rope(folder: Path, config: LayerConfig) -> tuple[float, tuple[tuple[str, str | float], ...]]:
    """Theta, and the other parameters of the rotary frequencies."""
    given = {**(config.rope_scaling or {}), **(config.rope_parameters or {})}
    if any(isinstance(one, dict) for one in given.values()):  # parameters by layer type
        given = given.get((config.layer_types or ["full_attention"])[0]) or {}
    kind = str(given.get("rope_type", given.get("type", "default")))
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(f"{folder}: rope_type is {kind!r}; supported are {', '.join(ROPE_TYPES)}")
    partial = given.get("partial_rotary_factor", config.partial_rotary_factor)
    if partial not in (None, 1):
        raise UnsupportedModelError(f"{folder}: partial_rotary_factor is {partial}; it must be 1")
    theta = float(given.get("rope_theta") or config.rope_theta or 10000)
    if kind == "default":
        return theta, ()
    scaling = {"original_max_position_embeddings": config.max_position_embeddings, **given, "rope_type": kind}
    skipped = ("type", "rope_theta", "partial_rotary_factor")
    plain = {name: value for name, value in scaling.items() if isinstance(value, str | int | float)}
    return theta, tuple((name, value) for name, value in sorted(plain.items()) if name not in skipped)
