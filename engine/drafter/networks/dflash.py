"""The DFlash family: a block of slots attends to the target's fused states and drafts in one forward pass.

Fields of the spec select DFlash (arXiv 2602.06036), JetSpec (arXiv 2606.18394), whose block is causal, or DSpark (arXiv
2607.05147), which also drafts from the anchor's slot, and adds a Markov head and a confidence head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.drafter.networks.base import LayeredNetwork, TargetParts
from engine.drafter.networks.layer import Attend, DecoderLayer, rms_norm
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError


class MarkovHead(nn.Module):
    """Adds logits for the token before each draft: a low-rank matrix over all pairs of tokens (DSpark).

    "gated" scales the pair's embedding by the slot's output; "rnn" carries a state along the drafted path.
    """

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.kind, rank = spec.markov_head, spec.markov_rank
        self.w1 = nn.Parameter(torch.randn(spec.vocab_size, rank))
        self.w2 = nn.Parameter(torch.randn(spec.draft_vocab_size, rank) * rank**-0.5)
        if self.kind == "gated":
            self.gate = nn.Linear(spec.width + rank, rank)
        elif self.kind == "rnn":
            self.joint = nn.Linear(2 * rank + spec.width, 3 * rank)

    def forward(self, previous: Tensor, outputs: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits to add, ``[..., draft_vocab_size]``, and with "rnn" the states for the next depth.

        Args:
            previous: int64 ``[...]``, the token before each draft: its parent in the tree.
            outputs: ``[..., hidden]``, of the drafts' slots.
            states: ``[..., rank]``, with "rnn" those that the call for the parents returned; None at the first depth.
        """
        pair = self.w1[previous]
        if self.kind == "gated":
            pair = torch.sigmoid(self.gate(torch.cat((outputs, pair), dim=-1))) * pair
        elif self.kind == "rnn":
            states = torch.zeros_like(pair) if states is None else states
            keep, candidate, out = self.joint(torch.cat((states, pair, outputs), dim=-1)).chunk(3, dim=-1)
            keep = torch.sigmoid(keep)
            states = keep * states + (1 - keep) * torch.tanh(candidate)
            pair = torch.tanh(out)
        return pair @ self.w2.T, states


class DFlash(LayeredNetwork):
    """Committed positions enter as keys and values of their fused taps, never as rows."""

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        self.hidden_norm = rms_norm(spec.width, self.shape)
        if spec.markov_rank:
            self.markov = MarkovHead(spec)
        if spec.has_confidence:
            rank = spec.markov_rank if spec.confidence_with_markov else 0
            self.confidence = nn.Linear(spec.width + rank, 1)

    def context(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Every layer's rotated keys, and values, ``[..., n, n_kv_heads, head_dim]``, of committed positions.

        Args:
            fused: ``[..., n, hidden]``, from ``fuse``.
            positions: int64 ``[..., n]``.
        """
        normed, rotation, kept = self.hidden_norm(fused), self.rotary(positions, fused.dtype), []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            kept.append(layer.keys_values(normed, rotation))
        return kept

    def n_slots(self, n_drafts: int) -> int:
        """Slots of a block that drafts ``n_drafts`` tokens: one more if the anchor's slot drafts none."""
        return n_drafts if self.spec.sample_from_anchor else n_drafts + 1

    def embed_block(self, anchors: Tensor, n_drafts: int) -> Tensor:
        """Embeddings ``[..., n_slots, hidden]`` of blocks: the anchor, then masks.

        Args:
            anchors: int64 ``[...]``, the last committed token of each sequence; slot s has the anchor's position + s.
            n_drafts: tokens to draft.

        Raises:
            ConfigError: the spec has no mask token.
        """
        mask = self.spec.mask_token_id
        if mask is None:
            raise ConfigError("mask_token_id is None; a block's slots need the mask token's embedding")
        slots = torch.full((*anchors.shape, self.n_slots(n_drafts)), mask, device=anchors.device)
        slots[..., 0] = anchors
        return self.embed_tokens(slots)

    def forward(self, embedded: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Normed outputs ``[..., n_slots, hidden]`` of a block's slots; ``logits`` omits the Markov head's part.

        Args:
            embedded: ``[..., n_slots, hidden]``, from ``embed_block``.
            positions: int64 ``[..., n_slots]``.
            attend: attention over the context and the block; with ``causal_block``, a slot sees no later slot.
        """
        rows, rotation = embedded, self.rotary(positions, embedded.dtype)
        for layer in self.layers:
            rows = layer(rows, rotation, attend)
        normed: Tensor = self.norm(rows)
        return normed

    def select_drafting(self, outputs: Tensor) -> Tensor:
        """The outputs ``[..., n_drafts, hidden]`` of the slots that draft, in order."""
        return outputs if self.spec.sample_from_anchor else outputs[..., 1:, :]

    def estimate_acceptance(self, outputs: Tensor, previous: Tensor) -> Tensor:
        """Estimated probability ``[...]`` that a draft is accepted, at least float32.

        Args:
            outputs: ``[..., hidden]``, of drafting slots.
            previous: int64 ``[...]``, the token before each draft.
        """
        if self.spec.markov_rank and self.spec.confidence_with_markov:
            outputs = torch.cat((outputs, self.markov.w1[previous]), dim=-1)
        raw: Tensor = self.confidence(outputs).squeeze(-1)
        return torch.sigmoid(raw.to(torch.promote_types(raw.dtype, torch.float32)))
