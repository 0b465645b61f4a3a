"""The transformer layer of all drafters, without its attention, and its rotary position embeddings.

The caller supplies attention: training uses dense masks over a batch, the engine packs rows of many sequences and keeps
keys and values in an arena. A layer passes its queries, keys and values to an ``Attend`` function.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.drafter.spec import ROPE_TYPES, DrafterSpec, LayerShape
from engine.errors import ConfigError

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, query, key, value)``, for the rows of this forward pass. Shapes: queries, rotated, and the result
``[..., n, n_heads, head_dim]``; keys, rotated, and values ``[..., n, n_kv_heads, head_dim]``. The scale is
``head_dim ** -0.5``, the window is the spec's."""

Rotation = tuple[Tensor, Tensor]  # cos and sin, each [..., n, head_dim]


class DecoderLayer(nn.Module):
    """Attention and a gated feed-forward part, each with a residual, as in Llama, Qwen2 and Qwen3.

    The first layer of EAGLE-3 and P-EAGLE attends over [token embedding; state], each normed, and adds to the state.
    """

    def __init__(self, spec: DrafterSpec, shape: LayerShape, index: int) -> None:
        super().__init__()
        self.index, self.head_dim, self.norm_before_residual = index, shape.head_dim, spec.norm_before_residual
        hidden, head, bias = shape.hidden_size, shape.head_dim, shape.attention_bias
        is_pair = index == 0 and spec.has_pair_layer
        n_inputs = hidden * (2 if is_pair else 1)
        self.q = nn.Linear(n_inputs, shape.n_heads * head, bias=bias)
        self.k = nn.Linear(n_inputs, shape.n_kv_heads * head, bias=bias)
        self.v = nn.Linear(n_inputs, shape.n_kv_heads * head, bias=bias)
        self.o = nn.Linear(shape.n_heads * head, hidden, bias=shape.output_bias)
        self.gate = nn.Linear(hidden, shape.ffn_size, bias=False)
        self.up = nn.Linear(hidden, shape.ffn_size, bias=False)
        self.down = nn.Linear(shape.ffn_size, hidden, bias=False)
        self.q_norm = rms_norm(head, shape) if shape.qk_norm else nn.Identity()
        self.k_norm = rms_norm(head, shape) if shape.qk_norm else nn.Identity()
        self.ffn_norm = rms_norm(hidden, shape)
        if is_pair:
            self.embed_norm, self.hidden_norm = rms_norm(hidden, shape), rms_norm(hidden, shape)
        else:  # the first layer of EAGLE-1 and of ParallelSpec on EAGLE has no input norm
            self.input_norm = rms_norm(hidden, shape) if index > 0 or spec.has_final_norm else nn.Identity()

    def forward(self, rows: Tensor, rotation: Rotation, attend: Attend, embedded: Tensor | None = None) -> Tensor:
        """Outputs ``[..., n, hidden]``.

        Args:
            rows: ``[..., n, hidden]``; states in the first layer of EAGLE-3 and P-EAGLE.
            rotation: of these rows.
            attend: the attention.
            embedded: ``[..., n, hidden]``, token embeddings, only in the first layer of EAGLE-3 and P-EAGLE.
        """
        if embedded is None:
            residual, inputs = rows, self.input_norm(rows)
        else:
            normed = self.hidden_norm(rows)
            residual = normed if self.norm_before_residual else rows
            inputs = torch.cat((self.embed_norm(embedded), normed), dim=-1)
        query = rotate(self.q_norm(self._split_heads(self.q(inputs))), rotation)
        attended = attend(self.index, query, *self.keys_values(inputs, rotation))
        hidden: Tensor = residual + self.o(attended.flatten(-2))
        normed = self.ffn_norm(hidden)
        fed: Tensor = self.down(F.silu(self.gate(normed)) * self.up(normed))
        return hidden + fed

    def keys_values(self, inputs: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, ``[..., n, n_kv_heads, head_dim]``, of normed inputs ``[..., n, n_inputs]``."""
        key = rotate(self.k_norm(self._split_heads(self.k(inputs))), rotation)
        return key, self._split_heads(self.v(inputs))

    def _split_heads(self, flat: Tensor) -> Tensor:
        return flat.view(*flat.shape[:-1], -1, self.head_dim)


def rms_norm(width: int, shape: LayerShape) -> nn.RMSNorm:
    """A norm with the drafter's epsilon."""
    return nn.RMSNorm(width, eps=shape.rms_norm_eps)


class Rotary:
    """Computes rotations of positions (arXiv 2104.09864); no module, so that casting weights keeps its precision.

    Raises:
        ConfigError: the frequencies of this ``rope_scaling`` change with the length of the text.
    """

    def __init__(self, shape: LayerShape) -> None:
        self._frequencies, self._scale = _rope_frequencies(shape)  # float64 [head_dim / 2]

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Rotations of positions, int64 ``[..., n]``, in ``dtype``; angles have at least float32 precision."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        exact = torch.promote_types(dtype, torch.float32)
        angles = positions[..., None].to(exact) * self._frequencies.to(exact)
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self._scale).to(dtype), (angles.sin() * self._scale).to(dtype)


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotated queries or keys ``[..., n, heads, head_dim]``; the two halves of a head are rotated, as in Llama."""
    cos, sin = rotation
    first, second = heads.chunk(2, dim=-1)
    return heads * cos.unsqueeze(-2) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(-2)


def _rope_frequencies(shape: LayerShape) -> tuple[Tensor, float]:
    """Radians per position for each pair of coordinates, and the factor of cos and sin."""
    scaling = dict(shape.rope_scaling)
    kind = str(scaling.get("rope_type", "default"))
    if kind not in ROPE_TYPES:
        raise ConfigError(
            f"rope_scaling has rope_type {kind!r}, but cached keys need frequencies that do not change with the length "
            f"of the text; supported are {', '.join(ROPE_TYPES)}"
        )
    if kind == "default":
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device="cpu") / shape.head_dim
        return shape.rope_theta**-exponents, 1.0
    from transformers import LlamaConfig  # imported here because most drafters do not need it
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.n_heads,
        head_dim=shape.head_dim,
        rope_parameters={**scaling, "rope_theta": shape.rope_theta},
    )
    with torch.device("cpu"):  # the network itself may be built on the meta device
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.double(), float(scale)
