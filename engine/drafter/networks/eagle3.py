"""EAGLE-3 (arXiv 2503.01840) and P-EAGLE (arXiv 2602.01469), which drafts all tokens in one forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.drafter.networks.base import TappedNetwork, TargetParts
from engine.drafter.networks.layer import Attend, DecoderLayer, PairLayer, rms_norm
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError


class Eagle3(TappedNetwork):
    """Row i: token i + 1 and the fused taps at i, at position i; it scores token i + 2."""

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        shape = self.shape
        first = PairLayer(shape, norm_before_residual=spec.norm_before_residual)
        self.layers = nn.ModuleList([first, *(DecoderLayer(shape, i) for i in range(1, shape.n_layers))])
        self.norm = rms_norm(shape.hidden_size, shape)
        if spec.has_mask_state:
            self.mask_state = nn.Parameter(torch.randn(len(spec.taps) * spec.target_hidden_size))

    def forward(self, embedded: Tensor, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The rows' outputs ``[..., n, hidden]``: what ``logits`` and ``next_states`` take.

        Args:
            embedded: ``[..., n, hidden]``, of tokens or the mask.
            states: ``[..., n, hidden]``, from ``fuse`` or ``next_states``.
            positions: int64 ``[..., n]``.
            attend: the attention.
        """
        rotation = self.rotary(positions, embedded.dtype)
        first, *others = self.layers
        assert isinstance(first, PairLayer)
        rows = first.pair(embedded, states, rotation, attend)
        for layer in others:
            rows = layer(rows, rotation, attend)
        return rows

    def logits(self, outputs: Tensor) -> Tensor:
        """Scores ``[..., draft_vocab_size]`` of ``[..., hidden]``."""
        return self.score(self.norm(outputs))

    def next_states(self, outputs: Tensor) -> Tensor:
        """States ``[..., hidden]`` of the rows of drafted tokens: a drafted token has no taps yet."""
        states: Tensor = self.norm(outputs) if self.spec.norm_output else outputs
        return states

    def mask_rows(self, n: int) -> tuple[Tensor, Tensor]:
        """Embeddings and states, ``[n, hidden]``, of ``n`` masks, all alike; they follow the last real row in
        position.

        Raises:
            ConfigError: the drafter has no masks.
        """
        mask = self.spec.mask_token_id
        if mask is None or not self.spec.has_mask_state:
            raise ConfigError(f"mask_token_id is {mask}, has_mask_state {self.spec.has_mask_state}: masks need both")
        tokens = torch.full((n,), mask, device=self.mask_state.device)
        return self.embed_tokens(tokens), self.fuse(self.mask_state).expand(n, -1)
