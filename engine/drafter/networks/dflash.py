"""The DFlash family: a block of slots beside the target's fused states (arXiv 2602.06036).

JetSpec (arXiv 2606.18394) makes the block causal, DSpark (arXiv 2607.05147) drafts from the anchor's slot too and adds
a head over the previous token and one that tells how likely a draft is accepted: all by the spec.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.drafter.networks.base import TappedNetwork, TargetParts
from engine.drafter.networks.layer import Attend, DecoderLayer, rms_norm
from engine.drafter.networks.markov import MarkovHead
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError


class DFlash(TappedNetwork):
    """Committed positions enter as keys and values of their fused taps, and never as rows."""

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        shape = self.shape
        self.hidden_norm = rms_norm(shape.hidden_size, shape)
        self.layers = nn.ModuleList(DecoderLayer(shape, i) for i in range(shape.n_layers))
        self.norm = rms_norm(shape.hidden_size, shape)
        if spec.markov_rank:
            self.markov = MarkovHead(spec, shape.hidden_size)
        if spec.has_confidence:
            rank = spec.markov_rank if spec.confidence_with_markov else 0
            self.confidence = nn.Linear(shape.hidden_size + rank, 1)

    def context(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Every layer's rotated keys, and values, ``[..., n, n_kv_heads, head_dim]``, of committed positions.

        Args:
            fused: ``[..., n, hidden]``, from ``fuse``.
            positions: int64 ``[..., n]``.
        """
        normed = self.hidden_norm(fused)
        rotation = self.rotary(positions, fused.dtype)
        kept = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            kept.append(layer.keys_values(normed, rotation))
        return kept

    def n_slots(self, n_drafts: int) -> int:
        """Slots of a block that drafts so many tokens: one more where the anchor's slot drafts none."""
        return n_drafts if self.spec.sample_from_anchor else n_drafts + 1

    def block(self, anchors: Tensor, n_drafts: int) -> Tensor:
        """Embeddings ``[..., n_slots, hidden]`` of blocks: the anchor, then masks.

        Args:
            anchors: int64 ``[...]``, the last committed token of each; slot s stands at its position + s.
            n_drafts: tokens to draft.

        Raises:
            ConfigError: the spec has no mask.
        """
        mask = self.spec.mask_token_id
        if mask is None:
            raise ConfigError("mask_token_id is None: a block's slots are the mask token's embedding")
        slots = torch.full((*anchors.shape, self.n_slots(n_drafts)), mask, device=anchors.device)
        slots[..., 0] = anchors
        return self.embed_tokens(slots)

    def forward(self, embedded: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Outputs ``[..., n_slots, hidden]``, normed, of a block's slots.

        Args:
            embedded: ``[..., n_slots, hidden]``, from ``block``.
            positions: int64 ``[..., n_slots]``.
            attend: the attention over the context and the block: all of the block, or with ``causal_block`` a slot and
                those before it.
        """
        rotation = self.rotary(positions, embedded.dtype)
        rows = embedded
        for layer in self.layers:
            rows = layer(rows, rotation, attend)
        normed: Tensor = self.norm(rows)
        return normed

    def drafting(self, outputs: Tensor) -> Tensor:
        """Those ``[..., n_drafts, hidden]`` of a block's outputs that draft, in order."""
        return outputs if self.spec.sample_from_anchor else outputs[..., 1:, :]

    def logits(self, outputs: Tensor) -> Tensor:
        """Scores ``[..., draft_vocab_size]`` of ``[..., hidden]``, before the Markov head's are added."""
        return self.score(outputs)

    def acceptance(self, outputs: Tensor, previous: Tensor) -> Tensor:
        """Estimated probability ``[...]`` that a draft is accepted, float32 at least.

        Args:
            outputs: ``[..., hidden]``, of drafting slots.
            previous: int64 ``[...]``, the token before each draft.
        """
        if self.spec.markov_rank and self.spec.confidence_with_markov:
            outputs = torch.cat((outputs, self.markov.w1[previous]), dim=-1)
        raw: Tensor = self.confidence(outputs).squeeze(-1)
        return torch.sigmoid(raw.to(torch.promote_types(raw.dtype, torch.float32)))
