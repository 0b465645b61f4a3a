"""Rotary position embeddings (arXiv 2104.09864), halves rotated as in Llama."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.drafter.spec import LayerShape
from engine.errors import ConfigError

Rotation = tuple[Tensor, Tensor]  # cos and sin, each [..., n, head_dim]

_SCALED = ("linear", "llama3", "yarn")  # whose frequencies do not depend on the text's length


class Rotary:
    """Turns positions into rotations; no module, so that a cast of weights does not round the frequencies."""

    def __init__(self, shape: LayerShape) -> None:
        """Raises ConfigError where ``rope_scaling`` is of a kind whose frequencies change with the text's length."""
        self._frequencies, self._scale = _frequencies(shape)  # float64 [head_dim / 2]

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation of every row.

        Args:
            positions: int64 ``[..., n]``.
            dtype: of the result; angles are computed in float32 at least.
        """
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        exact = torch.promote_types(dtype, torch.float32)
        angles = positions[..., None].to(exact) * self._frequencies.to(exact)
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self._scale).to(dtype), (angles.sin() * self._scale).to(dtype)


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Queries or keys ``[..., n, heads, head_dim]``, rotated."""
    cos, sin = rotation
    first, second = heads.chunk(2, dim=-1)
    return heads * cos.unsqueeze(-2) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(-2)


def _frequencies(shape: LayerShape) -> tuple[Tensor, float]:
    """Radians per position of every pair of coordinates, and what cos and sin are multiplied by."""
    scaling = dict(shape.rope_scaling)
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device="cpu") / shape.head_dim
        return shape.rope_theta**-exponents, 1.0
    if kind not in _SCALED:
        raise ConfigError(
            f"rope_scaling has rope_type {kind!r}, whose frequencies change with the text's length, which cached keys "
            f"cannot follow; supported are default, {', '.join(_SCALED)}"
        )
    from transformers import LlamaConfig  # only here: many drafters do without
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.n_heads,
        head_dim=shape.head_dim,
        rope_parameters={**scaling, "rope_theta": shape.rope_theta},
    )
    with torch.device("cpu"):  # not where the network's weights are being made
        frequencies, scale = ROPE_INIT_FUNCTIONS[str(kind)](config, torch.device("cpu"))
    return frequencies.double(), float(scale)
