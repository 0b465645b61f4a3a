"""Drafters over pairs of a token and the state before it: EAGLE 1 and 2, and ParallelSpec.

EAGLE (arXiv 2401.15077, 2406.16858) feeds its own states back, a forward for every further token. ParallelSpec (arXiv
2410.05589) appends rows of trained masks, one for every further token, all in one forward. On EAGLE it keeps EAGLE's
layer, which regresses states; on Medusa it has a layer shaped like the target's, with all its norms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.drafter.networks.base import LayeredNetwork, TargetParts
from engine.drafter.networks.layer import Attend, DecoderLayer, rms_norm
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError


class PairNetwork(LayeredNetwork):
    """Row i: token i + 1 and the state at i, at position i; it scores token i + 2.

    ``parallelspec-medusa`` without states has a row i + 1 for token i + 1 alone, at position i + 1.
    """

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        shape, state = self.shape, spec.target_hidden_size
        self.reads_states = spec.reads_states
        if spec.taps:
            raise ConfigError(f"taps is {spec.taps}: {spec.method} reads the final norm's output, and no layer's")
        if not spec.reads_states and spec.method != "parallelspec-medusa":
            raise ConfigError(f"reads_states is False: {spec.method} needs states, parallelspec-medusa may do without")
        self.has_norms = spec.method == "parallelspec-medusa"
        if spec.reads_states:
            self.fc = nn.Linear(shape.hidden_size + state, shape.hidden_size, bias=spec.fc_bias)
        self.layers = nn.ModuleList(
            DecoderLayer(shape, i, normed=self.has_norms or i > 0) for i in range(shape.n_layers)
        )
        if self.has_norms:
            self.norm = rms_norm(shape.hidden_size, shape)
        if spec.method != "eagle":
            self.mask_embeddings = nn.Parameter(torch.randn(n_masks(spec), shape.hidden_size))
            if spec.has_mask_state:
                self.mask_state = nn.Parameter(torch.randn(state))

    def forward(self, embedded: Tensor, states: Tensor | None, positions: Tensor, attend: Attend) -> Tensor:
        """The rows' outputs ``[..., n, hidden]``: what ``logits`` and ``next_states`` take.

        Args:
            embedded: ``[..., n, hidden]``, of tokens or masks.
            states: ``[..., n, target_hidden]``, the final norm's outputs before these tokens, or what stands for them;
                None where the drafter reads none.
            positions: int64 ``[..., n]``.
            attend: the attention.
        """
        rows = embedded
        if self.reads_states:
            assert states is not None, "a drafter that reads states got none"
            rows = self.fc(torch.cat((embedded, states), dim=-1))
        rotation = self.rotary(positions, rows.dtype)
        for layer in self.layers:
            rows = layer(rows, rotation, attend)
        return rows

    def fuse(self, states: Tensor) -> Tensor:
        """The states themselves: they are read as the final norm leaves them."""
        return states

    def logits(self, outputs: Tensor) -> Tensor:
        """Scores ``[..., draft_vocab_size]`` of ``[..., hidden]``."""
        return self.score(self.norm(outputs) if self.has_norms else outputs)

    def next_states(self, outputs: Tensor) -> Tensor:
        """States ``[..., hidden]`` of the rows of drafted tokens (EAGLE)."""
        return outputs

    def mask_rows(self, n: int) -> tuple[Tensor, Tensor | None]:
        """Embeddings and states, ``[n, hidden]``, of the first ``n`` masks; they follow the last real row in position.

        Raises:
            ConfigError: more masks than were trained.
        """
        if n > len(self.mask_embeddings):
            raise ConfigError(f"{n} masks are wanted, but the drafter was trained with {len(self.mask_embeddings)}")
        embedded = self.mask_embeddings[:n]
        if not self.reads_states:
            return embedded, None
        if self.spec.has_mask_state:
            return embedded, self.mask_state.expand(n, -1)
        return embedded, embedded.new_zeros(n, self.spec.target_hidden_size)


def n_masks(spec: DrafterSpec) -> int:
    """Mask rows beside the last real row, of drafters that write all drafts in one forward.

    Raises:
        ConfigError: the spec does not say how many tokens it drafts.
    """
    if spec.n_drafts is None or spec.n_drafts < 1:
        raise ConfigError(f"n_drafts is {spec.n_drafts}: {spec.method} was trained for a number of drafts, at least 1")
    return spec.n_drafts - 1
