"""Weights of decoder layers as the kernels read them, taken from Hugging Face's modules.

Matrices that read the same rows become one: queries, keys and values; gate and up. The modules keep working: their
parameters become views of these, so that nothing is held twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.cuda.kernels.attention import Heads
from engine.cuda.kernels.gemm import INPUT_LEAVES, leaves_of
from engine.errors import UnsupportedModelError
from engine.model.families import get_family
from engine.model.scaled import ScaledLinear
from engine.model.shard import ModelShard, window_of
from engine.model.spec import ModelSpec

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight that ``Products`` multiplies by."""

    weight: Tensor  # [n_out, n_in], of the dtype of rows, int8 or fp8
    scales: Tensor | None  # fp32 [n_out], of a weight of one byte
    bias: Tensor | None  # [n_out]
    leaves: int  # of its sums over inputs, see ``kernels.leaves``


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm."""

    weight: Tensor
    eps: float
    offset: float  # added to the weight

    @classmethod
    def of(cls, module: Any, spec: ModelSpec) -> Norm:
        """Wrap a Hugging Face RMS norm, whose epsilon has one of two names."""
        eps: float | None = getattr(module, "variance_epsilon", None)
        return cls(module.weight, module.eps if eps is None else eps, get_family(spec.family).norm_offset)


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding table, and the factor of its rows."""

    table: Tensor  # [vocab, hidden]
    scale: float  # 1 except in Gemma

    @classmethod
    def of(cls, module: nn.Module) -> Embedding:
        """From torch's module, or Gemma's."""
        return cls(module.weight, float(getattr(module, "embed_scale", 1.0)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; norms that a family lacks are None."""

    heads: Heads
    frequencies: Tensor  # fp32 [head_dim / 2]
    rope_scaling: float
    activation: str  # as ``kernels.activation`` names it
    before_attention: Norm
    qkv: Matrix
    q_norm: Norm | None
    k_norm: Norm | None
    attention_out: Matrix
    after_attention: Norm | None  # of attention's output, before it is added
    before_mlp: Norm
    gate_up: Matrix
    down: Matrix
    after_mlp: Norm | None


def pack_layers(shard: ModelShard) -> list[LayerWeights]:
    """The layers of a shard.

    Raises:
        UnsupportedModelError: a layer's activation has no kernel.
    """
    with torch.no_grad():
        return [_pack(layer, shard, local) for local, layer in enumerate(shard.layers)]


def matrix_of(module: nn.Module) -> Matrix:
    """The matrix of a linear module."""
    return _fused([module])


def _pack(layer: Any, shard: ModelShard, local: int) -> LayerWeights:
    attention, mlp, spec = layer.self_attn, layer.mlp, shard.spec
    config = attention.config
    name = getattr(config, get_family(spec.family).activation_field)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"the activation {name!r} has no kernel; there are {', '.join(ACTIVATIONS)}")
    frequencies, scaling = shard.frequencies(local)
    heads = Heads(spec.n_heads, spec.n_kv_heads, spec.head_dim, attention.scaling, window_of(attention))
    second = getattr(layer, "pre_feedforward_layernorm", None)  # with it, norms stand on both sides
    return LayerWeights(
        heads=heads,
        frequencies=frequencies,
        rope_scaling=scaling,
        activation=ACTIVATIONS[name],
        before_attention=Norm.of(layer.input_layernorm, spec),
        qkv=_fused([attention.q_proj, attention.k_proj, attention.v_proj]),
        q_norm=_norm_if_any(attention, "q_norm", spec),
        k_norm=_norm_if_any(attention, "k_norm", spec),
        attention_out=_fused([attention.o_proj], INPUT_LEAVES),
        after_attention=None if second is None else Norm.of(layer.post_attention_layernorm, spec),
        before_mlp=Norm.of(layer.post_attention_layernorm if second is None else second, spec),
        gate_up=_fused([mlp.gate_proj, mlp.up_proj]),
        down=_fused([mlp.down_proj], INPUT_LEAVES),
        after_mlp=_norm_if_any(layer, "post_feedforward_layernorm", spec),
    )


def _norm_if_any(owner: nn.Module, name: str, spec: ModelSpec) -> Norm | None:
    module = getattr(owner, name, None)
    return None if module is None else Norm.of(module, spec)


def _fused(modules: Sequence[Any], leaves: int | None = None) -> Matrix:
    """One matrix of linear modules, whose outputs follow each other; all of them have a bias, or none has.

    ``leaves``: of its sums; by default those of a matrix whose outputs may be sharded. Where only some modules have
    weights of one byte, as in some checkpoints, these get the dtype of the others.
    """
    wide = [module.weight.dtype for module in modules if module.weight.dtype.itemsize > 1]
    for module in modules if wide else ():
        if isinstance(module, ScaledLinear):
            module.widen(wide[0])
    weight = _joined([module.weight for module in modules])
    scales = _joined([] if wide else [module.output_scales for module in modules])
    bias = _joined([module.bias for module in modules if module.bias is not None])
    assert weight is not None
    first = 0
    for module in modules if len(modules) > 1 else ():
        last = first + module.weight.shape[0]
        if scales is None:
            module.weight = nn.Parameter(weight[first:last], requires_grad=False)
        else:
            module.register_buffer("weight", weight[first:last])
        if bias is not None:
            module.bias = nn.Parameter(bias[first:last], requires_grad=False)
        first = last
    return Matrix(weight, scales, bias, leaves or leaves_of(len(weight)))


def _joined(tensors: Sequence[Tensor]) -> Tensor | None:
    if not tensors:
        return None
    return tensors[0].detach() if len(tensors) == 1 else torch.cat([tensor.detach() for tensor in tensors])
