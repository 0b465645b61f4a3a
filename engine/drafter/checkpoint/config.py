"""The fields of a public drafter's config.json, in all layouts."""

from __future__ import annotations

import msgspec

from engine.drafter.checkpoint.layers import LayerConfig
from engine.drafter.spec import MarkovHeadKind

Ids = tuple[int, ...]


class ProposalMethod(msgspec.Struct, frozen=True):
    """An element of ``proposal_methods``."""

    proposal_type: str = "greedy"
    speculative_tokens: int | None = None


class Proposals(msgspec.Struct, frozen=True):
    """The object ``speculators_config``."""

    proposal_methods: tuple[ProposalMethod, ...] = ()
    default_proposal_method: str = "greedy"

    @property
    def n_drafts(self) -> int | None:
        """Tokens that the default method drafts."""
        chosen = (one for one in self.proposal_methods if one.proposal_type == self.default_proposal_method)
        return next((one.speculative_tokens for one in chosen), None)


class DrafterConfig(LayerConfig, frozen=True, kw_only=True):
    """Fields of all public layouts, those of ``NESTED`` objects included; a null counts as a missing field."""

    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    target_layer_ids: Ids | None = None  # by output
    eagle_aux_hidden_state_layer_ids: Ids | None = None  # by input, but see ``taps_of_input_ids``
    aux_hidden_state_layer_ids: Ids | None = None  # by input: speculators' DFlash
    use_aux_hidden_state: bool = True
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False  # SpecForge before September 2026 meant only the head's input, which is always normed
    mask_token_id: int | None = None
    pard_token: int | None = None
    ptd_token_id: int | None = None
    speculators_config: Proposals = Proposals()
    block_size: int | None = None
    causal_head: bool = False
    shift_label: bool | None = None
    sample_from_anchor: bool | None = None
    sliding_window_non_causal: bool = False
    projector_type: str | None = None
    markov_rank: int = 0
    markov_head_type: MarkovHeadKind = "vanilla"
    confidence_head_with_markov: bool | None = None

    @property
    def mask_token(self) -> int | None:
        """The token of mask rows; the order of its three names is vLLM's."""
        named = (self.mask_token_id, self.pard_token, self.ptd_token_id)
        return next((token for token in named if token is not None), None)
