"""What the engine has to know about a checkpoint's architecture, read from its Hugging Face config.

A family is supported when its layers can be driven one by one through the attention hook and its parts are where
Llama's are (``embed_tokens``, ``layers``, ``norm``, ``rotary_emb``, ``lm_head``). The tested list is explicit: a wrong
guess would not crash, it would write wrong text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import UnsupportedModelError
from engine.model.quantization import stored_quantization

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
# Tables of cos and sin by position are exact only where the frequencies do not depend on the sequence's length.
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and limits of a target, independent of weights."""

    family: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_positions: int  # tokens, prompt + output
    layer_types: tuple[str, ...]  # [n_layers], "full_attention" or "sliding_attention"
    eos_ids: tuple[int, ...]
    dtype: str  # the checkpoint's, as torch names it: "bfloat16"
    logit_softcap: float | None

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.n_heads // self.n_kv_heads


def read_spec(config: Any, eos_ids: tuple[int, ...] | None = None) -> ModelSpec:
    """The spec of a Hugging Face text config.

    Raises:
        UnsupportedModelError: names what the model has that the engine lacks.
    """
    if config.model_type not in FAMILIES:
        raise UnsupportedModelError(
            f"model type {config.model_type!r} is not supported: its layers have not been tested behind the attention "
            f"hook; supported are {', '.join(FAMILIES)}"
        )
    _check_rope(config)
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
        eos_ids=_as_tuple(config.eos_token_id) if eos_ids is None else eos_ids,
        dtype=_dtype(config),
        logit_softcap=getattr(config, "final_logit_softcapping", None),
    )


def _as_tuple(eos: int | list[int] | None) -> tuple[int, ...]:
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _dtype(config: Any) -> str:
    return str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")


def _check_rope(config: Any) -> None:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    for one in nested:
        rope_type = one.get("rope_type", "default")
        if rope_type not in _STATIC_ROPE:
            raise UnsupportedModelError(
                f"rope_type {rope_type!r} changes with the sequence's length, which a shared KV cache cannot follow; "
                f"supported are {', '.join(_STATIC_ROPE)}"
            )
