"""Heads on the target's last state (Medusa, arXiv 2401.10774)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.drafter.networks.base import Network, TargetParts
from engine.drafter.spec import DrafterSpec


class MedusaHead(nn.Module):
    """Residual blocks, then a matrix to the vocabulary."""

    def __init__(self, hidden_size: int, vocab_size: int, n_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(n_blocks))
        self.out = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """States ``[..., hidden]`` to logits ``[..., vocab_size]``."""
        for block in self.blocks:
            states = states + F.silu(block(states))
        logits: Tensor = self.out(states)
        return logits


class Medusa(Network):
    """K heads that draft K tokens of one state, blind to the last committed token and to each other."""

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        width, vocab = spec.target_hidden_size, spec.draft_vocab_size
        self.heads = nn.ModuleList(MedusaHead(width, vocab, spec.n_head_layers) for _ in range(spec.n_heads))

    def forward(self, states: Tensor) -> Tensor:
        """Logits ``[..., n_heads, draft_vocab_size]``, float32 at least.

        Args:
            states: ``[..., target_hidden]``, outputs of the final norm. Head k of the state at position i, from 0,
                drafts token i + 2 + k: token i + 1 is the target's own.
        """
        logits = torch.stack([head(states) for head in self.heads], dim=-2)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
