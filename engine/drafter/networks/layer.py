"""One transformer layer of a drafter, without its attention.

Who sees whom, and where keys are kept, is the caller's: training has dense masks over a batch, the engine packs rows
of many sequences and keeps keys in an arena. A layer hands its rows' queries, keys and values to an ``Attend``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.drafter.networks.rotary import Rotation, rotate
from engine.drafter.spec import LayerShape

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, query, key, value)``: rotated ``[..., n, n_heads, head_dim]``, keys and values
``[..., n, n_kv_heads, head_dim]``, of this forward's rows; returns ``[..., n, n_heads, head_dim]``. The attention's
scale is ``head_dim ** -0.5``, its window the spec's."""


class DecoderLayer(nn.Module):
    """Attention and a gated feed-forward part, each added to what comes in; as in Llama, Qwen2 and Qwen3."""

    def __init__(self, shape: LayerShape, index: int, *, n_inputs: int = 1, normed: bool = True) -> None:
        """Layer ``index`` of ``shape``.

        Args:
            shape: sizes.
            index: from 0; what ``attend`` is called with.
            n_inputs: vectors of width ``hidden_size`` that queries, keys and values are made of.
            normed: the layer has a norm of its input.
        """
        super().__init__()
        self.index, self.shape = index, shape
        hidden, head, bias = shape.hidden_size, shape.head_dim, shape.attention_bias
        self.q = nn.Linear(n_inputs * hidden, shape.n_heads * head, bias=bias)
        self.k = nn.Linear(n_inputs * hidden, shape.n_kv_heads * head, bias=bias)
        self.v = nn.Linear(n_inputs * hidden, shape.n_kv_heads * head, bias=bias)
        self.o = nn.Linear(shape.n_heads * head, hidden, bias=shape.output_bias)
        self.gate = nn.Linear(hidden, shape.ffn_size, bias=False)
        self.up = nn.Linear(hidden, shape.ffn_size, bias=False)
        self.down = nn.Linear(shape.ffn_size, hidden, bias=False)
        self.q_norm = rms_norm(head, shape) if shape.qk_norm else nn.Identity()
        self.k_norm = rms_norm(head, shape) if shape.qk_norm else nn.Identity()
        self.input_norm = rms_norm(hidden, shape) if normed else nn.Identity()
        self.ffn_norm = rms_norm(hidden, shape)

    def forward(self, rows: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Rows ``[..., n, hidden]`` to ``[..., n, hidden]``."""
        return self.transform(rows, self.input_norm(rows), rotation, attend)

    def transform(self, residual: Tensor, inputs: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """The layer behind its input norm.

        Args:
            residual: ``[..., n, hidden]``, what the attention's output is added to.
            inputs: ``[..., n, n_inputs * hidden]``, what queries, keys and values are made of.
            rotation: of these rows.
            attend: the attention.
        """
        query = rotate(self.q_norm(self._heads(self.q(inputs))), rotation)
        attended = attend(self.index, query, *self.keys_values(inputs, rotation))
        hidden: Tensor = residual + self.o(attended.flatten(-2))
        normed = self.ffn_norm(hidden)
        fed: Tensor = self.down(F.silu(self.gate(normed)) * self.up(normed))
        return hidden + fed

    def keys_values(self, inputs: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, ``[..., n, n_kv_heads, head_dim]``, of what they are made of."""
        key = rotate(self.k_norm(self._heads(self.k(inputs))), rotation)
        return key, self._heads(self.v(inputs))

    def _heads(self, flat: Tensor) -> Tensor:
        return flat.view(*flat.shape[:-1], -1, self.shape.head_dim)


class PairLayer(DecoderLayer):
    """The first layer of EAGLE-3 (arXiv 2503.01840): attention over a token's embedding beside a state."""

    def __init__(self, shape: LayerShape, *, norm_before_residual: bool) -> None:
        super().__init__(shape, 0, n_inputs=2, normed=False)
        self.norm_before_residual = norm_before_residual
        self.embed_norm = rms_norm(shape.hidden_size, shape)
        self.hidden_norm = rms_norm(shape.hidden_size, shape)

    def pair(self, embedded: Tensor, states: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Embeddings and states, each ``[..., n, hidden]``, to ``[..., n, hidden]``."""
        normed = self.hidden_norm(states)
        inputs = torch.cat((self.embed_norm(embedded), normed), dim=-1)
        return self.transform(normed if self.norm_before_residual else states, inputs, rotation, attend)


def rms_norm(width: int, shape: LayerShape) -> nn.RMSNorm:
    """A norm with the drafter's epsilon."""
    return nn.RMSNorm(width, eps=shape.rms_norm_eps)
