"""Parts of weights that ranks have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands check their flags without torch
    from torch import Tensor

OUTER = 0  # dimension of a matrix's outputs
INNER = 1  # dimension of its inputs


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A range of a weight's rows or columns.

    Args:
        dim: ``OUTER`` or ``INNER``.
        first: row or column.
        last: the one after the part; it may exceed the weight, and the part is then padded with zeros.
    """

    dim: int
    first: int
    last: int

    def of(self, weight: Tensor) -> Tensor:
        """Return the part of a whole weight as a view, without padding."""
        return weight[self.first : self.last] if self.dim == OUTER else weight[:, self.first : self.last]
