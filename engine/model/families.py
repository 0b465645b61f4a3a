"""The table of supported model families: how each differs from Llama in Hugging Face's classes and in GGUF files.

A family's decoder must have Llama's parts (``embed_tokens``, ``layers``, ``norm``, ``rotary_emb``, ``lm_head``), and
the attention hook must be able to run its layers one by one. The list is explicit because a wrong guess would not
crash: it would generate wrong text. A new family of this shape is one entry here and its name in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from engine.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class GgufDialect:
    """How the GGUF files of one family differ from those of others.

    Args:
        architecture: value of ``general.architecture``; None: the family's files are not read.
        windowed_type: model type of the family whose files also have this architecture, but a sliding window.
        has_window: whether a file may have a sliding window.
        interleaves_heads: whether the two halves of a query or key head alternate row by row.
        scores_by_order: whether the order of the tokens ranks the merges, not ``scores``; tokens of spaces are then
            spelled with spaces, and texts get no space in front.
        sliding_period: of this many layers one attends to everything, if the file does not say which.
        rope_theta: base of rotary positions, if the file has none.
        rope_theta_sliding: the same for layers with a sliding window.
        n_layers_scaled_by_hidden: number of layers of the size that scales queries by hidden size / heads. Other
            sizes scale them by the head's size.
        settings: entries of config.json that the file does not contain.
    """

    architecture: str | None
    windowed_type: str | None = None
    has_window: bool = False
    interleaves_heads: bool = False
    scores_by_order: bool = False
    sliding_period: int = 6
    rope_theta: float = 10_000.0
    rope_theta_sliding: float = 10_000.0
    n_layers_scaled_by_hidden: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpertDialect:
    """How a family with experts differs from others.

    Args:
        stored: parts of parameters' names and of the checkpoint's, which has a matrix for each expert.
        rounds_weights: whether the weights of a row's experts are rounded to the dtype of rows.
        normalizes: whether these weights are divided by their sum; None: the config's ``norm_topk_prob`` says it.
    """

    stored: tuple[tuple[str, str], ...] = ()
    rounds_weights: bool = False
    normalizes: bool | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """One supported family.

    Args:
        model_type: value of ``model_type`` in config.json.
        model_class: name of Hugging Face's causal LM.
        gguf: the family's GGUF files.
        window: who has the sliding window: the config for all layers, each layer its own, or None.
        has_rope_per_layer_type: whether layers with and without a sliding window rotate by different frequencies.
        has_head_norms: whether queries and keys are normalized per head.
        has_output_norms: whether outputs of attention and MLP are normalized before they are added, in addition to
            the inputs (for GGUF; CUDA looks for ``pre_feedforward_layernorm``).
        norm_offset: added to the weights of RMS norms.
        activation_field: config field that names the MLP's activation.
        biases: projections that always have a bias.
        has_optional_biases: whether ``attention_bias`` and ``mlp_bias`` of the config add biases.
        mlp_size_field: config field with the width of an MLP, or of each expert.
        experts: its experts; None: every layer has one MLP.
    """

    model_type: str
    model_class: str
    gguf: GgufDialect
    window: Literal["config", "layer"] | None = None
    has_rope_per_layer_type: bool = False
    has_head_norms: bool = False
    has_output_norms: bool = False
    norm_offset: float = 0.0
    activation_field: str = "hidden_act"
    biases: tuple[str, ...] = ()
    has_optional_biases: bool = False
    mlp_size_field: str = "intermediate_size"
    experts: ExpertDialect | None = None

    def stored_name(self, parameter: str) -> str:
        """Return the name of a parameter in checkpoints."""
        for own, stored in self.experts.stored if self.experts is not None else ():
            parameter = parameter.replace(own, stored)
        return parameter


_ALL = (
    Family(
        "llama",
        "LlamaForCausalLM",
        # Most files of Mistral have Llama's architecture; only their sliding window differs.
        GgufDialect("llama", windowed_type="mistral", interleaves_heads=True),
        has_optional_biases=True,
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        GgufDialect("mistral", has_window=True, interleaves_heads=True),
        window="config",
    ),
    Family("qwen2", "Qwen2ForCausalLM", GgufDialect("qwen2"), window="layer", biases=("q_proj", "k_proj", "v_proj")),
    Family("qwen3", "Qwen3ForCausalLM", GgufDialect("qwen3"), window="layer", has_head_norms=True),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        GgufDialect(
            "gemma3",
            has_window=True,
            scores_by_order=True,
            rope_theta=1_000_000.0,
            n_layers_scaled_by_hidden=62,
            settings={"hidden_activation": "gelu_pytorch_tanh"},
        ),
        window="layer",
        has_rope_per_layer_type=True,
        has_head_norms=True,
        has_output_norms=True,
        norm_offset=1.0,
        activation_field="hidden_activation",
    ),
    Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        GgufDialect(None),
        window="layer",
        has_head_norms=True,
        mlp_size_field="moe_intermediate_size",
        experts=ExpertDialect(rounds_weights=True),
    ),
    Family(
        "mixtral",
        "MixtralForCausalLM",
        GgufDialect(None),
        window="config",
        experts=ExpertDialect(
            stored=(
                (".mlp.", ".block_sparse_moe."),
                (".gate_proj.", ".w1."),
                (".down_proj.", ".w2."),
                (".up_proj.", ".w3."),
            ),
            normalizes=True,
        ),
    ),
)
FAMILIES = {family.model_type: family for family in _ALL}
_OF_GGUF = [(family.gguf.architecture, family) for family in _ALL if family.gguf.architecture is not None]
GGUF_FAMILIES = dict(_OF_GGUF)
assert len(GGUF_FAMILIES) == len(_OF_GGUF), "two families have the same GGUF architecture"
# Families that users ask for, and why they are not supported.
_REFUSED = {
    "gpt_oss": "its weights are MXFP4, and its attention has sinks, which the kernels lack; Qwen3-MoE and Mixtral are "
    "supported mixtures of experts"
}


def get_family(model_type: Any) -> Family:
    """Return the family of a config.json's ``model_type``.

    Raises:
        UnsupportedModelError: it is missing or not supported; lists those that are.
    """
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    known = ", ".join(FAMILIES)
    if model_type in _REFUSED:
        raise UnsupportedModelError(f"model type {model_type!r} is not supported: {_REFUSED[model_type]}")
    if model_type is None:
        raise UnsupportedModelError(f"model_type is missing; it must be one of {known}")
    raise UnsupportedModelError(
        f"model type {model_type!r} is not supported: its layers have not been tested with the attention hook; "
        f"model_type must be one of {known}"
    )
