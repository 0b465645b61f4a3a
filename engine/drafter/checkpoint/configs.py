"""What config.json may say about a drafter, with each field's default where a public file leaves it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.drafter.spec import MarkovHeadKind
from engine.errors import UnsupportedModelError

Decoded = TypeVar("Decoded")
Ids = tuple[int, ...]


class LayerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of a drafter's transformer layers, in Hugging Face's words."""

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


class EagleFields(msgspec.Struct, frozen=True):
    """NVIDIA's object ``eagle_config``."""

    eagle_aux_hidden_state_layer_ids: Ids | None = None
    use_aux_hidden_state: bool = True


class DFlashFields(msgspec.Struct, frozen=True, kw_only=True):
    """The object ``dflash_config``; DeepSpec has its fields beside the others."""

    target_layer_ids: Ids | None = None
    mask_token_id: int | None = None
    block_size: int | None = None
    causal_head: bool = False
    shift_label: bool = False
    projector_type: str | None = None
    markov_rank: int = 0
    markov_head_type: MarkovHeadKind = "vanilla"
    confidence_head_with_markov: bool = False


class EagleConfig(LayerConfig, frozen=True, kw_only=True):
    """Of EAGLE-1 and EAGLE-3 as their authors, SpecForge, NVIDIA, DeepSpec and vLLM write them."""

    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    eagle_config: EagleFields | None = None
    eagle_aux_hidden_state_layer_ids: Ids | None = None
    target_layer_ids: Ids | None = None  # of outputs; DeepSpec's, and written by us beside the others
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool | None = None
    dflash_config: DFlashFields | None = None
    mask_token_id: int | None = None
    pard_token: int | None = None
    ptd_token_id: int | None = None


class DFlashConfig(LayerConfig, frozen=True, kw_only=True):
    """Of DFlash as its authors, JetSpec and SpecForge write it."""

    dflash_config: DFlashFields
    block_size: int | None = None


class ProposalMethod(msgspec.Struct, frozen=True):
    """One of the ways in which a speculator was meant to draft."""

    proposal_type: str = "greedy"
    speculative_tokens: int | None = None


class Proposals(msgspec.Struct, frozen=True):
    """The object ``speculators_config``."""

    proposal_methods: tuple[ProposalMethod, ...] = ()
    default_proposal_method: str = "greedy"

    @property
    def n_drafts(self) -> int | None:
        """Tokens that the default way drafts."""
        chosen = (way for way in self.proposal_methods if way.proposal_type == self.default_proposal_method)
        return next((way.speculative_tokens for way in chosen), None)


class SpeculatorsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of vLLM's speculators."""

    speculators_model_type: str
    transformer_layer_config: LayerConfig
    speculators_config: Proposals = Proposals()
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    eagle_aux_hidden_state_layer_ids: Ids | None = None
    aux_hidden_state_layer_ids: Ids | None = None
    target_layer_ids: Ids | None = None  # of outputs; written by us beside the others
    mask_token_id: int | None = None
    block_size: int = 8
    sample_from_anchor: bool | None = None
    sliding_window_non_causal: bool = False
    markov_rank: int = 0
    markov_head_type: MarkovHeadKind = "vanilla"
    confidence_head_with_markov: bool = True


def decode(folder: Path, config: dict[str, Any], kind: type[Decoded]) -> Decoded:
    """A config as one of the above, or as a description of our own.

    Raises:
        UnsupportedModelError: a field is missing, or of another type; the message has its path.
    """
    try:
        return msgspec.convert(config, kind)
    except msgspec.ValidationError as error:
        raise UnsupportedModelError(f"{folder / 'config.json'} describes no drafter that is known: {error}") from error
