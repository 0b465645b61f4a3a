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


def unit_bytes(stored: StoredTensor) -> int:
    """Bytes that can only be dequantised together: a row; a head if its halves alternate in the file; a vector."""
    info = stored.info
    return info.n_bytes if len(info.shape) == 1 else info.row_bytes * max(1, stored.interleaved)


def dequantise(stored: StoredTensor, raw: Array) -> Array:
    """Rows as the model has them, flat fp32.

    Args:
        stored: the tensor.
        raw: uint8, one or more units of ``unit_bytes``.
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
    info, unit = stored.info, unit_bytes(stored)
    step = unit * max(1, AT_ONCE * info.n_bytes // (prod(info.shape) * unit))
    for first in range(0, info.n_bytes, step):
        n_bytes = min(step, info.n_bytes - first)
        yield dequantise(stored, np.fromfile(header.path, np.uint8, n_bytes, offset=info.first + first))
