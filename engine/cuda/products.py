"""How an executor multiplies rows by weights: in a fixed order of sums, or by the vendor's library."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.cuda.kernels.gemm import multiply
from engine.cuda.weights import Matrix


class Products(Protocol):
    """Multiplies rows by the matrices of layers and head."""

    def multiply(
        self,
        rows: Tensor,
        matrix: Matrix,
        out: Tensor | None = None,
        residual: Tensor | None = None,
        overlaps: bool = False,
    ) -> Tensor:
        """``rows @ weight.T * scales + bias``, rounded, or ``residual +`` that.

        Args:
            rows: ``[n, n_in]``.
            matrix: of ``n_out`` outputs.
            out: ``[n, n_out]`` of any float dtype; may be ``residual``. By default it is new, of the dtype of ``rows``.
            residual: ``[n, n_out]`` of the dtype of ``out``.
            overlaps: whether our launches may overlap the previous kernel's end.

        Returns:
            ``out``.
        """


class TreeProducts:
    """Numerics ``exact``: our kernel, in which a row's bits depend on that row alone.

    Args:
        row_tile: rows that are multiplied at once, whatever the step; None: by the number of rows.
    """

    def __init__(self, row_tile: int | None = None) -> None:
        self.row_tile = row_tile

    def multiply(
        self,
        rows: Tensor,
        matrix: Matrix,
        out: Tensor | None = None,
        residual: Tensor | None = None,
        overlaps: bool = False,
    ) -> Tensor:
        """Implements ``Products``."""
        out = rows.new_empty(len(rows), len(matrix.weight)) if out is None else out
        multiply(
            rows,
            matrix.weight,
            out,
            leaves=matrix.leaves,
            row_tile=self.row_tile,
            scales=matrix.scales,
            bias=matrix.bias,
            residual=residual,
            overlaps=overlaps,
        )
        return out


class LibraryProducts:
    """Numerics ``fast``: cuBLAS, whose sums depend on the number of rows; our kernel for weights of one byte."""

    def __init__(self) -> None:
        self._of_bytes = TreeProducts()

    def multiply(
        self,
        rows: Tensor,
        matrix: Matrix,
        out: Tensor | None = None,
        residual: Tensor | None = None,
        overlaps: bool = False,
    ) -> Tensor:
        """Implements ``Products``."""
        if matrix.scales is not None:
            return self._of_bytes.multiply(rows, matrix, out, residual, overlaps)
        product = linear(rows, matrix.weight, matrix.bias)
        if residual is not None:
            return torch.add(residual, product, out=out)
        return product if out is None else out.copy_(product)
