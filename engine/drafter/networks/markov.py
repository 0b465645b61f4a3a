"""What the token before a draft adds to the draft's logits (DSpark, arXiv 2607.05147)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.drafter.spec import DrafterSpec


class MarkovHead(nn.Module):
    """A matrix of all pairs of tokens, in low rank; gated by the slot's output, or with a state along the path."""

    def __init__(self, spec: DrafterSpec, hidden_size: int) -> None:
        super().__init__()
        self.kind, rank = spec.markov_head, spec.markov_rank
        self.w1 = nn.Parameter(torch.randn(spec.vocab_size, rank))
        self.w2 = nn.Parameter(torch.randn(spec.draft_vocab_size, rank) * rank**-0.5)
        if self.kind == "gated":
            self.gate = nn.Linear(hidden_size + rank, rank)
        elif self.kind == "rnn":
            self.joint = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def forward(self, previous: Tensor, outputs: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """What to add to the logits, ``[..., draft_vocab_size]``, and with "rnn" the states of the next depth.

        Args:
            previous: int64 ``[...]``, the token before each draft: its parent in the tree.
            outputs: ``[..., hidden]``, of the drafts' slots.
            states: ``[..., rank]``, with "rnn" what the parents' calls returned; None at the first depth.
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
