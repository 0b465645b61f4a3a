"""Hidden states made smaller before they travel: a fixed random matrix keeps their cosines (Johnson-Lindenstrauss).

Two unit vectors at cosine ``c`` are afterwards at ``c`` within about ``(1 - c^2) / sqrt(dims)``: near ones stay near.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_SEED = 3  # any; the same everywhere, so that all states of a sequence are projected alike


def project(states: Tensor, dims: int) -> Tensor:
    """``[.., d]`` -> fp32 ``[.., dims]``; as it is when ``dims`` is 0 or not below ``d``."""
    if not 0 < dims < states.shape[-1]:
        return states
    projected: Tensor = states.float() @ _matrix(states.shape[-1], dims, states.device)
    return projected


@lru_cache(maxsize=8)
def _matrix(d: int, dims: int, device: torch.device) -> Tensor:
    """fp32 ``[d, dims]``, drawn on the CPU so that every device has the same."""
    drawn = torch.randn(d, dims, generator=torch.Generator().manual_seed(_SEED))
    scaled: Tensor = drawn / dims**0.5
    return scaled.to(device)
