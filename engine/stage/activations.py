"""What travels from stage to stage, in the process of either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a router's frames have no tensors: it starts without torch
    from torch import Tensor


@dataclass(slots=True)
class Activations:
    """Hidden states, and tapped ones once some stage has tapped them."""

    hidden: Tensor  # [1, n_rows, hidden]
    tapped: Tensor | None = None
