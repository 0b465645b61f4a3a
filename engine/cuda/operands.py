"""Sizes and weights of a decoder layer, as kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from engine.model.exchange import Ranks
from engine.model.matrices.groups import ScaleGroups


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads of a layer.

    Args:
        n_heads: query heads.
        n_kv_heads: key heads.
        head_dim: width of a head.
        scale: factor of scores, before the cap.
        window: a row sees its last ``window`` positions, including its own; None: all.
        softcap: scores are ``softcap * tanh(score / softcap)``; None: scores are not capped.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.n_heads // self.n_kv_heads


@dataclass(frozen=True, slots=True)
class RotaryFrequencies:
    """The rotary embedding of a layer."""

    frequencies: Tensor  # fp32 [head_dim / 2]
    scaling: float  # factor of cosines and sines


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix of a product."""

    # [n_out, n_in], contiguous: the dtype of rows, int8 or float8_e4m3fn; with groups, as ``groups.widen`` takes it
    weight: Tensor
    scales: Tensor | None  # fp32 [n_out], of a one-byte weight without groups
    bias: Tensor | None  # [n_out]
    leaves: int  # of its sums over inputs, a power of two; see ``kernels.leaves``
    ranks: Ranks | None = None  # that share the inputs, and have to add their sums; None: it has all inputs
    groups: ScaleGroups | None = None  # scales of groups of inputs


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm."""

    weight: Tensor
    eps: float  # added to the mean square
    offset: float = 0.0  # added to the weight: 1 in Gemma's norms


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding table, and the factor of its rows."""

    table: Tensor  # [vocab, hidden]
    scale: float  # 1 except in Gemma

    @classmethod
    def of(cls, module: nn.Module) -> Embedding:
        """Return the embedding of torch's module or Gemma's."""
        return cls(module.weight, float(getattr(module, "embed_scale", 1.0)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Mlp:
    """The MLP of a layer."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class ExpertMlps:
    """The experts of a layer, of which every row has some.

    Args:
        router: its outputs are the scores of all experts.
        gate_up: ``[n_own * 2 * width, hidden]``, the matrices of this process's experts one after the other.
        down: ``[n_own * hidden, width]``, like ``gate_up``.
        n_experts: of all ranks.
        first: number of this process's first expert.
        n_own: experts of this process, which are adjacent.
        per_row: experts that a row has.
        normalizes: whether the weights of a row's experts are divided by their sum.
        rounds_weights: whether these weights are rounded to the dtype of rows.
        ranks: that share the experts, and have to add their sums; None: this process has all.
    """

    router: Matrix
    gate_up: Matrix
    down: Matrix
    n_experts: int
    first: int
    n_own: int
    per_row: int
    normalizes: bool
    rounds_weights: bool
    ranks: Ranks | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; a norm that the family lacks is None."""

    heads: Heads
    rotary: RotaryFrequencies
    activation: str  # as ``kernels.activation`` names it
    before_attention: Norm
    qkv: Matrix
    head_norms: tuple[Norm, Norm] | None  # of queries and of keys, which share ``eps`` and ``offset``
    attention_out: Matrix
    after_attention: Norm | None  # of attention's output, before it is added to the residual stream
    before_mlp: Norm
    mlp: Mlp | ExpertMlps
    after_mlp: Norm | None
