"""Reads a model's sizes and limits from its Hugging Face config, and refuses what the engine does not support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import UnsupportedModelError
from engine.model.families import get_family
from engine.model.matrices.quantization import stored_quantization

# A table of cos and sin by position is exact only if frequencies do not depend on the sequence's length.
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
_DYNAMIC_ROPE = ("dynamic", "longrope")
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_DTYPE_ALIASES = {"float": "float32", "half": "float16", "double": "float64"}  # torch's
_SLIDING = "sliding_attention"
_AT_LEAST_1 = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "vocab_size",
    "max_position_embeddings",
    "query_pre_attn_scalar",
)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and limits of a target model."""

    family: str  # model type of a ``Family``, or another name for a model without weights
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_positions: int  # tokens, prompt + output
    layer_types: tuple[str, ...]  # [n_layers], "full_attention" or "sliding_attention"
    eos_ids: tuple[int, ...]
    dtype: str  # the checkpoint's, by torch's name: "bfloat16"
    logit_softcap: float | None
    mlp_size: int = 0  # width of a layer's MLP, or of each of its experts
    n_experts: int = 0  # of a layer; 0: it has one MLP
    experts_per_token: int = 0  # that a layer runs for each token

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.n_heads // self.n_kv_heads


def read_spec(config: Any, eos_ids: tuple[int, ...] | None = None) -> ModelSpec:
    """Return the spec of a Hugging Face text config.

    Raises:
        UnsupportedModelError: the engine lacks something that the model needs; names it.
    """
    family = get_family(config.model_type)
    _check_rope(config)
    _check_window(config)
    _check_experts(config)
    stored_quantization(config)  # refuses every other quantisation
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModelError("use_bidirectional_attention is set: a decoder must be causal")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise UnsupportedModelError("attn_logit_softcapping is set: the attention kernels have no soft-capping")
    n_layers, n_heads = config.num_hidden_layers, config.num_attention_heads
    return ModelSpec(
        family=config.model_type,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=config.num_key_value_heads or n_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // n_heads,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        layer_types=tuple(getattr(config, "layer_types", None) or ("full_attention",) * n_layers),
        eos_ids=token_ids(config.eos_token_id, "eos_token_id") if eos_ids is None else eos_ids,
        dtype=str(getattr(config, "dtype", None) or "float32").removeprefix("torch."),
        logit_softcap=getattr(config, "final_logit_softcapping", None),
        mlp_size=getattr(config, family.mlp_size_field),
        n_experts=config.num_local_experts if family.experts else 0,
        experts_per_token=config.num_experts_per_tok if family.experts else 0,
    )


def check_values(stored: Mapping[str, Any]) -> None:
    """Check values of a config.json that transformers accepts, and on which it later fails without naming the key.

    Raises:
        UnsupportedModelError: names the key, its value and what is allowed.
    """
    from transformers.activations import ACT2FN  # imports torch, which some commands do not need

    family = get_family(stored.get("model_type"))
    for name in _AT_LEAST_1:
        value = stored.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise UnsupportedModelError(f"{name} is {value!r}; it must be a whole number of at least 1")
    if isinstance(epsilon := stored.get("rms_norm_eps"), float) and epsilon < 0:
        raise UnsupportedModelError(f"rms_norm_eps is {epsilon}; it must be at least 0")
    for name in ("quantization_config", "rope_parameters", "rope_scaling"):
        if stored.get(name) and not isinstance(stored[name], dict):
            raise UnsupportedModelError(f"{name} is {stored[name]!r}; it must be an object or null")
    activation = stored.get(family.activation_field, "silu")
    if not isinstance(activation, str) or activation not in ACT2FN:
        raise UnsupportedModelError(
            f"{family.activation_field} is {activation!r}, which is no activation that transformers knows"
        )


def declared_dtype(stored: Mapping[str, Any]) -> str:
    """Return the dtype of a config.json by torch's name; float32 if it is missing or ``auto``.

    Raises:
        UnsupportedModelError: weights cannot have this dtype.
    """
    name = stored.get("dtype", stored.get("torch_dtype"))
    short = name
    if isinstance(name, str):
        short = name.removeprefix("torch.")
        short = _DTYPE_ALIASES.get(short, short)
    if short in (None, "auto"):
        return _DTYPES[0]
    if short not in _DTYPES:
        raise UnsupportedModelError(f"dtype is {name!r}; it must be auto or one of {', '.join(_DTYPES)}")
    return str(short)


def token_ids(value: Any, name: str) -> tuple[int, ...]:
    """Return the ids in the field ``name``, whose value is one id, a list or None.

    Raises:
        UnsupportedModelError: the value is something else.
    """
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(one) is int for one in ids):
        raise UnsupportedModelError(f"{name} is {value!r}; it must be a token id, a list of them, or null")
    return tuple(ids)


def _check_window(config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    if window is None and _SLIDING in (getattr(config, "layer_types", None) or ()):
        raise UnsupportedModelError(f"sliding_window is null, but layer_types names {_SLIDING}")
    if window is not None and (type(window) is not int or window < 1):
        raise UnsupportedModelError(f"sliding_window is {window!r}; it must be null or a whole number of at least 1")
    if window is not None and get_family(config.model_type).window is None:
        # transformers would apply it to its cache, but not to the attention of the prompt.
        raise UnsupportedModelError(
            f"sliding_window is {window}, which layers of model type {config.model_type!r} do not have"
        )


def _check_experts(config: Any) -> None:
    if get_family(config.model_type).experts is None:
        return
    if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) != 1:
        raise UnsupportedModelError(
            f"mlp_only_layers is {config.mlp_only_layers} and decoder_sparse_step {config.decoder_sparse_step}; they "
            f"must be [] and 1: all layers have experts"
        )
    if config.num_experts_per_tok > config.num_local_experts:
        raise UnsupportedModelError(
            f"num_experts_per_tok is {config.num_experts_per_tok}, but there are {config.num_local_experts} experts"
        )


def _check_rope(config: Any) -> None:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    for one in nested:
        rope_type = one.get("rope_type", "default")
        if rope_type in _STATIC_ROPE:
            continue
        reason = "changes with the sequence's length, which a shared KV cache cannot follow"
        if rope_type not in _DYNAMIC_ROPE:
            reason = "is not known"
        raise UnsupportedModelError(f"rope_type {rope_type!r} {reason}; supported are {', '.join(_STATIC_ROPE)}")
