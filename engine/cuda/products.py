"""Products of rows and weights: in a fixed order of sums, or by the vendor's library."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.cuda.kernels.gemm import multiply
from engine.cuda.kernels.leaves import add_leaves
from engine.cuda.operands import Matrix
from engine.model.exchange import RankExchange


@dataclass(frozen=True, slots=True)
class Products:
    """Multiplies rows by the matrices of layers and head.

    Args:
        by_library: by cuBLAS, whose sums depend on the number of rows (numerics ``fast``), except for quantised
            weights; otherwise by our kernel, in which a row's bits depend on that row alone (``exact``).
        row_tile: rows that our kernel multiplies at once, whatever the step; None: by the number of rows.
    """

    by_library: bool = False
    row_tile: int | None = None

    def multiply(
        self,
        rows: Tensor,
        matrix: Matrix,
        out: Tensor | None = None,
        residual: Tensor | None = None,
        overlaps: bool = False,
    ) -> Tensor:
        """Write ``rows @ weight.T * scales + bias``, rounded, or ``residual +`` that, to ``out``, and return it.

        Args:
            rows: ``[n, n_in]``.
            matrix: has ``n_out`` outputs.
            out: ``[n, n_out]`` of any float dtype; may be ``residual``. None: new, of the dtype of ``rows``.
            residual: ``[n, n_out]`` of the dtype of ``out``.
            overlaps: our launches may overlap the previous kernel's end.

        Raises:
            EOFError, OSError: a rank that shares the inputs is lost.
        """
        if matrix.ranks is not None:
            out = rows.new_empty(len(rows), len(matrix.weight)) if out is None else out
            self._add_over_ranks(rows, matrix, matrix.ranks.connected, out, residual, overlaps)
            return out
        if self._uses_library(matrix):
            product = linear(rows, matrix.weight, matrix.bias)
            if residual is not None:
                return torch.add(residual, product, out=out)
            return product if out is None else out.copy_(product)
        out = rows.new_empty(len(rows), len(matrix.weight)) if out is None else out
        multiply(rows, matrix, out, row_tile=self.row_tile, residual=residual, overlaps=overlaps)
        return out

    def _add_over_ranks(
        self, rows: Tensor, matrix: Matrix, exchange: RankExchange, out: Tensor, residual: Tensor | None, overlaps: bool
    ) -> None:
        """Write a product whose inputs are split over ranks to ``out``; complete sums are scaled and rounded once."""

        def finish(sums: Tensor, some: slice) -> None:
            before = None if residual is None else residual[some]
            if len(sums):
                add_leaves(sums, out[some], scales=matrix.scales, bias=matrix.bias, residual=before)

        exchange.add(self._multiply_partly(rows, matrix, overlaps), out, finish)

    def _multiply_partly(self, rows: Tensor, matrix: Matrix, overlaps: bool) -> Tensor:
        """Return this rank's sums, fp32 ``[n, n_out]``, without scales and bias."""
        if self._uses_library(matrix):
            if rows.is_cuda and rows.dtype.itemsize == 2:
                return torch.mm(rows, matrix.weight.T, out_dtype=torch.float32)
            return linear(rows, matrix.weight).float()
        sums = torch.empty(len(rows), len(matrix.weight), dtype=torch.float32, device=rows.device)
        bare = replace(matrix, scales=None, bias=None, ranks=None)
        multiply(rows, bare, sums, row_tile=self.row_tile, overlaps=overlaps)
        return sums

    def _uses_library(self, matrix: Matrix) -> bool:
        return self.by_library and matrix.groups is None and matrix.weight.dtype.itemsize > 1
