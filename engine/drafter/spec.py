"""What a trained drafter is, whatever layout its checkpoint has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["medusa", "eagle", "parallelspec-medusa", "parallelspec-eagle", "p-eagle", "dflash"]
MarkovHead = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Of the drafter's transformer layers; all alike."""

    n_layers: int
    hidden_size: int
    ffn_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    rope_scaling: tuple[tuple[str, str | float], ...] = ()  # Hugging Face's rope parameters beside theta; (): none
    attention_bias: bool = False
    qk_norm: bool = False  # queries and keys are normalised per head, as in Qwen3
    window: int | None = None  # positions a query looks back over; None: all
    output_bias: bool = False  # of the attention's output; ``attention_bias`` is of queries, keys and values


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A drafter, normalised.

    A *tap* is the output of a target layer before the final norm, counted from 0: Hugging Face's
    ``hidden_states[tap + 1]``; -1 is the embedding.
    """

    method: Method
    generation: int  # of eagle: 1 (and 2, which differs in its trees), or 3; else 1
    target_hidden_size: int
    vocab_size: int  # of the target
    draft_vocab_size: int  # of the drafter's own head; ``vocab_size`` where it uses the target's
    taps: tuple[int, ...]  # whose states it reads; empty: only the final norm's output (medusa, eagle 1)
    layers: LayerShape | None  # None: no transformer layer (medusa)
    n_drafts: int | None = None  # tokens it was trained to draft in one go; None: any (eagle)
    n_heads: int = 0  # medusa: heads
    n_head_layers: int = 0  # medusa: residual blocks of each
    own_embedding: bool = False  # else the target's
    own_head: bool = False  # else the target's
    reads_states: bool = True  # False: parallelspec-medusa on tokens alone
    fc_bias: bool = False
    norm_before_fc: bool = False  # RMS norm of all taps together
    fc_norm: bool = False  # RMS norm of every tap
    norm_output: bool = False  # the state handed on is normed (EAGLE 3.1)
    norm_before_residual: bool = False  # the residual of the first layer is the normed state
    mask_token_id: int | None = None  # of parallel slots, where they are an embedding's row
    has_mask_state: bool = False  # a learned state of mask rows (p-eagle's ``mask_hidden``; parallelspec: else zeros)
    causal_block: bool = False  # dflash: slots see earlier ones only (JetSpec)
    sample_from_anchor: bool = False  # dflash: slot 0 drafts as well (DSpark)
    markov_rank: int = 0  # dflash: rank of the head that adds the previous token's logits; 0: none
    markov_head: MarkovHead = "vanilla"
    has_confidence: bool = False
    confidence_with_markov: bool = False  # that head reads the previous token's Markov embedding as well
