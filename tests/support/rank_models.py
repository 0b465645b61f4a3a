"""A rank's share of a causal LM that is in memory."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.nn import functional

from engine.model.exchange import Ranks, put_ranks
from engine.model.matrices.groups import GroupedLinear
from engine.model.matrices.part import OUTER, WeightPart
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard


def rank_model(model: Any, ranks: Ranks, layers: LayerRange) -> Any:
    """Return a copy with the weights of a rank, quantized ones included, and the modules that call other ranks."""
    own = copy.deepcopy(model)
    for name, whole in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        place, _, kind = name.rpartition(".")
        module = own.get_submodule(place)
        is_grouped = isinstance(module, GroupedLinear) and kind == "weight"
        shape = (len(whole), module.groups.n_in) if is_grouped else whole.shape
        part = ranks.share.part(name, shape, ranks.whole)
        if part is None:
            continue
        if is_grouped:
            _cut_groups(module, part)
            continue
        values = part.of(whole).detach()
        if part.dim == 0 and whole.ndim == 2:
            values = functional.pad(values, (0, 0, 0, part.last - part.first - len(values)))
        if kind in module._parameters:
            module._parameters[kind] = nn.Parameter(values.clone(), requires_grad=False)
        else:
            module._buffers[kind] = values.contiguous()
        if isinstance(module, nn.Linear) and values.ndim == 2:
            module.out_features, module.in_features = values.shape
    n_vocab = ranks.whole.vocab_size if layers.is_last else 0
    put_ranks(own, ranks, range(layers.first, layers.last), n_vocab)
    return own


def _cut_groups(module: GroupedLinear, part: WeightPart) -> None:
    if part.dim == OUTER:
        module.weight, module.groups = part.of(module.weight), module.groups.rows(part.first, part.last)
        return
    width = module.weight.shape[1] // module.groups.scales.shape[1]  # of a group's numbers
    module.groups, kept = module.groups.columns(part.first, part.last)
    module.weight = module.weight[:, kept.start * width : kept.stop * width].contiguous()


def rank_shard(model: Any, ranks: Ranks, layers: LayerRange, n_positions: int) -> ModelShard:
    """Return a rank's shard of a stage with these layers."""
    return ModelShard(rank_model(model, ranks, layers), ranks.whole, layers, n_positions, ranks=ranks)
