"""Compares a row's result with that of the same row among others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

COUNTS = (1, 5, 63, 64, 65, 130)
ALONE = (0, 4, 62, 63, 64, 129)


def assert_rows_alike(compute: Callable[[Tensor], Tensor], n_rows: int) -> None:
    """Every row has the same bits among 1 to ``n_rows`` rows, alone, and in another order.

    Args:
        compute: takes the numbers of some rows, ``[n]``, and returns their results ``[n, ..]``.
        n_rows: of all.
    """
    among = compute(torch.arange(n_rows))
    for n in COUNTS:
        if n < n_rows:
            assert same_bits(compute(torch.arange(n)), among[:n]), f"among {n}"
    for row in ALONE:
        if row < n_rows:
            assert same_bits(compute(torch.tensor([row])), among[row : row + 1]), f"row {row} alone"
    order = torch.randperm(n_rows, generator=torch.Generator().manual_seed(1))
    assert same_bits(compute(order), among[order]), "in another order"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal to the bit."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory that shows where nothing was written."""
    return (
        torch.full(shape, float("nan"), dtype=dtype) if dtype.is_floating_point else torch.full(shape, -7, dtype=dtype)
    )
