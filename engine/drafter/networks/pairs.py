"""Drafters over pairs of a token and the state before it: EAGLE, EAGLE-3, ParallelSpec and P-EAGLE.

EAGLE (arXiv 2401.15077, 2406.16858, 2503.01840) reads its own outputs: one forward pass per drafted token. ParallelSpec
(arXiv 2410.05589) and P-EAGLE (arXiv 2602.01469) append mask rows, one per further token, in one forward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.drafter.networks.base import LayeredNetwork, TargetParts
from engine.drafter.networks.layer import Attend
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError


class PairNetwork(LayeredNetwork):
    """Row i reads token i + 1 and the state at i, has position i, and scores token i + 2.

    Without states (``parallelspec-medusa`` only), row i + 1 reads token i + 1 alone and has position i + 1.
    """

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        if spec.is_parallelspec:
            self.mask_embeddings = nn.Parameter(torch.randn((spec.n_drafts or 1) - 1, spec.width))
        if spec.has_mask_state:
            self.mask_state = nn.Parameter(torch.randn(spec.state_width))

    def forward(self, embedded: Tensor, states: Tensor | None, positions: Tensor, attend: Attend) -> Tensor:
        """Outputs ``[..., n, hidden]`` of the rows, for ``logits`` and ``next_states``.

        Args:
            embedded: ``[..., n, hidden]``, of tokens or masks.
            states: ``[..., n, width]``, from ``fuse``, ``next_states`` or ``mask_rows``; None without states.
            positions: int64 ``[..., n]``.
            attend: the attention.
        """
        rows, first = embedded, None
        if self.spec.has_pair_layer:
            assert states is not None, "the first layer reads states"
            rows, first = states, embedded
        elif self.spec.reads_states:
            assert states is not None, "fc reads states"
            rows = self.fc(torch.cat((embedded, states), dim=-1))
        rotation = self.rotary(positions, rows.dtype)
        for layer in self.layers:
            rows = layer(rows, rotation, attend, first)
            first = None
        return rows

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits ``[..., draft_vocab_size]`` of outputs ``[..., hidden]``, which are not normed yet."""
        return super().logits(self.norm(outputs))

    def next_states(self, outputs: Tensor) -> Tensor:
        """States ``[..., hidden]`` of the rows of drafted tokens, for which the target has no states yet (EAGLE)."""
        states: Tensor = self.norm(outputs) if self.spec.norm_output else outputs
        return states

    def mask_rows(self, n: int) -> tuple[Tensor, Tensor | None]:
        """Embeddings and states, ``[n, width]``, of the first ``n`` masks; their positions follow the last real row.

        Raises:
            ConfigError: the drafter has no masks, or fewer than ``n``.
        """
        spec = self.spec
        if spec.is_parallelspec:
            if n > len(self.mask_embeddings):
                raise ConfigError(f"{n} masks requested; the drafter was trained with {len(self.mask_embeddings)}")
            embedded = self.mask_embeddings[:n]
        elif spec.mask_token_id is not None and spec.has_mask_state:
            embedded = self.embed_tokens(torch.full((n,), spec.mask_token_id, device=self.mask_state.device))
        else:
            raise ConfigError(
                f"mask_token_id is {spec.mask_token_id}, has_mask_state is {spec.has_mask_state}; masks need both"
            )
        if not spec.reads_states:
            return embedded, None
        if not spec.has_mask_state:
            return embedded, embedded.new_zeros(n, spec.target_hidden_size)
        return embedded, self.fuse(self.mask_state).expand(n, -1)
