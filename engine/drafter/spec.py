"""Describes a trained drafter, whatever layout its checkpoint has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import ConfigError

Method = Literal["medusa", "eagle", "parallelspec-medusa", "parallelspec-eagle", "p-eagle", "dflash"]
MarkovHeadKind = Literal["vanilla", "gated", "rnn"]
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # their frequencies do not change with the length of the text


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes and options of the drafter's transformer layers, which are all alike."""

    n_layers: int
    hidden_size: int
    ffn_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    rope_scaling: tuple[tuple[str, str | float], ...] = ()  # Hugging Face's rope parameters except theta; (): default
    attention_bias: bool = False  # biases of queries, keys and values
    qk_norm: bool = False  # RMS norm of each head's queries and keys, as in Qwen3
    window: int | None = None  # positions that a query sees, its own included; None: all
    output_bias: bool = False  # bias of the attention's output projection


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """Describes one drafter.

    A *tap* is the output of a target layer before the final norm, counted from 0: Hugging Face's
    ``hidden_states[tap + 1]``; -1 is the embedding.
    """

    method: Method
    generation: int  # eagle: 1 (EAGLE-2 differs from it only in its trees) or 3; other methods: 1
    target_hidden_size: int
    vocab_size: int  # of the target
    draft_vocab_size: int  # tokens that it scores, with its own head or with these rows of the target's
    taps: tuple[int, ...]  # the drafter reads their states; empty: the final norm's output (medusa, eagle 1)
    layers: LayerShape | None  # None: no transformer layer (medusa)
    n_drafts: int | None = None  # tokens drafted in one forward pass; None: the caller decides (eagle)
    n_heads: int = 0  # medusa: heads
    n_head_layers: int = 0  # medusa: residual blocks of each head
    own_embedding: bool = False  # False: the target's embedding
    own_head: bool = False  # False: the target's head; medusa: every head has a matrix of its own
    reads_states: bool = True  # False: parallelspec-medusa that reads tokens only
    fc_bias: bool = False
    norm_before_fc: bool = False  # one RMS norm over all taps
    fc_norm: bool = False  # an RMS norm for each tap
    norm_output: bool = False  # EAGLE 3.1: a drafted token's row reads the normed output
    norm_before_residual: bool = False  # the first layer's residual is the normed state
    mask_token_id: int | None = None  # p-eagle, dflash: the token whose embedding fills mask rows
    has_mask_state: bool = False  # mask rows read a learned state (p-eagle's ``mask_hidden``); False: zeros
    causal_block: bool = False  # dflash: a slot sees only itself and earlier slots (JetSpec)
    sample_from_anchor: bool = False  # dflash: slot 0 drafts too (DSpark)
    markov_rank: int = 0  # dflash: rank of the head that adds logits for the previous token; 0: no such head
    markov_head: MarkovHeadKind = "vanilla"
    has_confidence: bool = False  # dflash: a head estimates the chance of acceptance
    confidence_with_markov: bool = False  # that head also reads the previous token's Markov embedding

    @property
    def has_pair_layer(self) -> bool:
        """Whether the first layer attends over [token embedding; state] (EAGLE-3, P-EAGLE)."""
        return self.method == "p-eagle" or (self.method == "eagle" and self.generation == 3)

    @property
    def has_final_norm(self) -> bool:
        """Whether an RMS norm precedes the head."""
        return self.has_pair_layer or self.method in ("dflash", "parallelspec-medusa")

    @property
    def uses_part_of_target_head(self) -> bool:
        """Whether it scores a part of the vocabulary with the target's head."""
        return not self.own_head and self.draft_vocab_size < self.vocab_size

    @property
    def is_parallelspec(self) -> bool:
        return self.method.startswith("parallelspec")

    @property
    def width(self) -> int:
        """Width of the drafter's rows."""
        return self.target_hidden_size if self.layers is None else self.layers.hidden_size

    @property
    def state_width(self) -> int:
        """Width of the states that the drafter reads: all taps side by side, or one final state."""
        return self.target_hidden_size * max(1, len(self.taps))


def check_spec(spec: DrafterSpec) -> None:
    """Raises ConfigError if the spec lacks a field that its method needs, or contradicts itself."""
    method, has_both = spec.method, spec.own_embedding and spec.own_head
    if spec.draft_vocab_size > spec.vocab_size:
        raise ConfigError(f"draft_vocab_size is {spec.draft_vocab_size}; the target has {spec.vocab_size} tokens")
    if method == "medusa":
        if spec.n_heads < 1:
            raise ConfigError(f"n_heads is {spec.n_heads}; medusa has at least 1")
        return
    if spec.layers is None:
        raise ConfigError(f"layers is None; {method} has at least one transformer layer")
    if spec.width != spec.target_hidden_size and not has_both:
        raise ConfigError(
            f"hidden_size of the drafter's layers is {spec.width}, the target's {spec.target_hidden_size}; they must "
            "be equal unless the drafter has its own embedding and head (own_embedding, own_head)"
        )
    if (spec.has_pair_layer or method == "dflash") != bool(spec.taps):
        if spec.taps:
            raise ConfigError(f"taps is {spec.taps}; {method} reads the final norm's output and no layer's")
        raise ConfigError(f"taps is empty; {method} reads the output of at least one target layer")
    if not spec.reads_states and method != "parallelspec-medusa":
        raise ConfigError(f"reads_states is False; only parallelspec-medusa can draft without states, not {method}")
    if spec.is_parallelspec and (spec.n_drafts is None or spec.n_drafts < 1):
        raise ConfigError(f"n_drafts is {spec.n_drafts}; {method} needs the number of drafts it was trained for")
