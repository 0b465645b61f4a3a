"""Medusa: heads on the target's last state (arXiv 2401.10774)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.drafter.networks.base import Network, TargetParts
from engine.drafter.spec import DrafterSpec


class MedusaHead(nn.Module):
    """Residual blocks, then a projection to the vocabulary, unless all heads share the target's."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(spec.width, spec.width) for _ in range(spec.n_head_layers))
        self.out = nn.Linear(spec.width, spec.draft_vocab_size, bias=False) if spec.own_head else nn.Identity()

    def forward(self, states: Tensor) -> Tensor:
        """Logits ``[..., draft_vocab_size]`` of states ``[..., hidden]``, or inputs of a shared head."""
        for block in self.blocks:
            states = states + F.silu(block(states))
        logits: Tensor = self.out(states)
        return logits


class Medusa(Network):
    """K heads draft K tokens from one state; none sees the last committed token or another head's draft."""

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        self.heads = nn.ModuleList(MedusaHead(spec) for _ in range(spec.n_heads))

    def forward(self, states: Tensor) -> Tensor:
        """Logits ``[..., n_heads, draft_vocab_size]``, at least float32.

        Args:
            states: ``[..., target_hidden]``, outputs of the final norm. From the state at position i, head k (from 0)
                drafts token i + 2 + k; token i + 1 is the target's own.
        """
        logits = torch.stack([head(states) for head in self.heads], dim=-2)
        logits = logits if self.spec.own_head else self.target.head(logits)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
