"""Matrices of one byte in layers that Hugging Face's modules run (numerics ``fast``), multiplied as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.cuda.kernels.gemm import linear
from engine.model.scaled import ScaledLinear
from engine.model.shard import ModelShard


def multiply_by_kernel(shard: ModelShard) -> None:
    """From now on no matrix of one byte is converted; what is not such a matrix stays as it is."""
    for layer in shard.layers:
        for module in layer.modules():
            if isinstance(module, ScaledLinear):
                module.product = _product


def _product(rows: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    out = rows.new_empty(len(rows), len(weight))
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # launches go to the current device
        linear(rows, weight, out, bias=bias, scales=scales)
    return out
