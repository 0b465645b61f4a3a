"""Fuses the weights of Hugging Face's modules as kernels read them.

Matrices that read the same rows become one: queries, keys and values; gate and up. The modules keep working: their
parameters become views of the fused matrices, so no weight is held twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.cuda.kernels.gemm import INPUT_LEAVES, choose_leaves
from engine.cuda.operands import ExpertMlps, Heads, LayerWeights, Matrix, Mlp, Norm, RotaryFrequencies
from engine.errors import UnsupportedModelError
from engine.model.exchange import ShardedHead, SummedExperts, SummedLinear
from engine.model.families import get_family
from engine.model.matrices.groups import GroupedLinear, join_groups
from engine.model.matrices.linears import ScaledLinear
from engine.model.shard import ModelShard, window_of
from engine.model.spec import ModelSpec

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def pack_layers(shard: ModelShard) -> list[LayerWeights]:
    """Return the weights of a shard's layers.

    Raises:
        UnsupportedModelError: a layer's activation has no kernel.
    """
    with torch.no_grad():
        return [_pack(layer, shard, local) for local, layer in enumerate(shard.layers)]


def pack_head(module: nn.Module) -> Matrix:
    """Return the head, or this rank's part of it."""
    if isinstance(module, ShardedHead):
        return _fuse([module.linear], choose_leaves(module.n_out))
    return _fuse([module], choose_leaves(len(module.weight)))  # type: ignore[arg-type]


def pack_norm(module: Any, spec: ModelSpec) -> Norm:
    """Return the norm of a Hugging Face module, whose epsilon has one of two names."""
    eps: float | None = getattr(module, "variance_epsilon", None)
    return Norm(module.weight, module.eps if eps is None else eps, get_family(spec.family).norm_offset)


def _pack(layer: Any, shard: ModelShard, local: int) -> LayerWeights:
    attention, spec = layer.self_attn, shard.spec
    config = attention.config
    name = getattr(config, get_family(spec.family).activation_field)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"the activation {name!r} has no kernel; there are {', '.join(ACTIVATIONS)}")
    whole = spec if shard.ranks is None else shard.ranks.whole
    n_qkv = (whole.n_heads + 2 * whole.n_kv_heads) * whole.head_dim  # key heads of several ranks count once
    heads = Heads(spec.n_heads, spec.n_kv_heads, spec.head_dim, attention.scaling, window_of(attention))
    head_norms = None
    if hasattr(attention, "q_norm"):
        head_norms = pack_norm(attention.q_norm, spec), pack_norm(attention.k_norm, spec)
    # A family that has it normalises before and after attention and MLP.
    second = getattr(layer, "pre_feedforward_layernorm", None)
    return LayerWeights(
        heads=heads,
        rotary=RotaryFrequencies(*shard.frequencies(local)),
        activation=ACTIVATIONS[name],
        before_attention=pack_norm(layer.input_layernorm, spec),
        qkv=_fuse([attention.q_proj, attention.k_proj, attention.v_proj], choose_leaves(n_qkv)),
        head_norms=head_norms,
        attention_out=_pack_summed(attention.o_proj),
        after_attention=None if second is None else pack_norm(layer.post_attention_layernorm, spec),
        before_mlp=pack_norm(layer.post_attention_layernorm if second is None else second, spec),
        mlp=_pack_mlp(layer.mlp, shard),
        after_mlp=None if second is None else pack_norm(layer.post_feedforward_layernorm, spec),
    )


def _pack_mlp(mlp: Any, shard: ModelShard) -> Mlp | ExpertMlps:
    if getattr(mlp, "experts", None) is not None:
        return _pack_experts(mlp, shard)
    size = 1 if shard.ranks is None else shard.ranks.share.size
    n_gate_up = size * (len(mlp.gate_proj.weight) + len(mlp.up_proj.weight))
    return Mlp(_fuse([mlp.gate_proj, mlp.up_proj], choose_leaves(n_gate_up)), _pack_summed(mlp.down_proj))


def _pack_experts(block: Any, shard: ModelShard) -> ExpertMlps:
    experts = block.experts.experts if isinstance(block.experts, SummedExperts) else block.experts
    own, dialect = [experts[number] for number in experts.own], get_family(shard.spec.family).experts
    assert dialect is not None
    normalizes = block.gate.norm_topk_prob if dialect.normalizes is None else dialect.normalizes
    return ExpertMlps(
        router=Matrix(block.gate.weight.detach(), None, None, choose_leaves(len(experts))),
        gate_up=_fuse([linear for one in own for linear in (one.gate_proj, one.up_proj)], 1),
        down=_fuse([one.down_proj for one in own], 1),
        n_experts=len(experts),
        first=experts.own.start,
        n_own=len(own),
        per_row=block.gate.top_k,
        normalizes=normalizes,
        rounds_weights=dialect.rounds_weights,
        ranks=shard.ranks,
    )


def _pack_summed(module: nn.Module) -> Matrix:
    """Return a matrix whose inputs ranks may share; together they have ``INPUT_LEAVES`` leaves."""
    if not isinstance(module, SummedLinear):
        return _fuse([module], INPUT_LEAVES)
    part = _fuse([module.linear], max(1, INPUT_LEAVES // module.ranks.share.size))
    return replace(part, bias=None if module.bias is None else module.bias.detach(), ranks=module.ranks)


def _fuse(modules: Sequence[Any], leaves: int) -> Matrix:
    """Return one matrix with the outputs of all modules; either all of them have a bias, or none.

    If only some modules have small numbers, as in some checkpoints, these are converted to the dtype of the others.
    """
    wide = [module.weight.dtype for module in modules if type(module) is nn.Linear]
    for module in modules if wide else ():
        if isinstance(module, ScaledLinear | GroupedLinear):
            module.widen(wide[0])
    weight = _concatenate([module.weight for module in modules])
    is_grouped = not wide and isinstance(modules[0], GroupedLinear)
    scales = _concatenate([] if wide or is_grouped else [module.output_scales for module in modules])
    groups = join_groups([module.groups for module in modules]) if is_grouped else None
    bias = _concatenate([module.bias for module in modules if module.bias is not None])
    assert weight is not None
    first = 0
    for module in modules if len(modules) > 1 else ():
        last = first + module.weight.shape[0]
        if scales is None and groups is None:
            module.weight = nn.Parameter(weight[first:last], requires_grad=False)
        else:
            module.register_buffer("weight", weight[first:last])
        if groups is not None:
            module.groups = groups.rows(first, last)
        if bias is not None:
            module.bias = nn.Parameter(bias[first:last], requires_grad=False)
        first = last
    return Matrix(weight, scales, bias, leaves, groups=groups)


def _concatenate(tensors: Sequence[Tensor]) -> Tensor | None:
    if not tensors:
        return None
    return tensors[0].detach() if len(tensors) == 1 else torch.cat([tensor.detach() for tensor in tensors])
