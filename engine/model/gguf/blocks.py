"""Weights of a GGUF file as fp32, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from engine.model.gguf.header import GgufHeader
from engine.model.gguf.names import StoredTensor

AT_ONCE = 1 << 20  # weights that are dequantised together
Array = np.ndarray[Any, Any]


def rows_together(stored: StoredTensor) -> int:
    """Rows that can only be dequantised together: those of a head if the file holds its halves interleaved."""
    return max(1, stored.interleaved)


def dequantise(stored: StoredTensor, raw: Array) -> Array:
    """Rows as the model has them, flat fp32.

    Args:
        stored: the tensor.
        raw: uint8, whole rows of it from a multiple of ``rows_together`` on.
    """
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    info = stored.info
    n_in = 1 if len(info.shape) == 1 and stored.interleaved else info.shape[-1]
    row_bytes = info.n_bytes // (prod(info.shape) // n_in)
    values = dequantize(raw.reshape(-1, row_bytes), GGMLQuantizationType(info.type)).reshape(-1, n_in)
    if stored.interleaved:
        values = values.reshape(-1, stored.interleaved // 2, 2, n_in).swapaxes(1, 2)
    flat: Array = values.reshape(-1)
    return flat - np.float32(stored.added) if stored.added else flat


def read_tensor(header: GgufHeader, stored: StoredTensor) -> Iterator[Array]:
    """All rows of a tensor, flat fp32, ``AT_ONCE`` weights at a time.

    Raises:
        OSError: the file cannot be read.
    """
    info = stored.info
    group = info.row_bytes * rows_together(stored) if len(info.shape) > 1 else info.n_bytes
    n_weights = prod(info.shape) * group // info.n_bytes
    step = group * max(1, AT_ONCE // n_weights)
    for first in range(0, info.n_bytes, step):
        yield dequantise(
            stored, np.fromfile(header.path, np.uint8, min(step, info.n_bytes - first), offset=info.first + first)
        )
