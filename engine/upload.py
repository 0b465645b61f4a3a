"""Uploads the arrays of a step to its device together, in one copy.

A separate copy of every list costs a launch each, and a copy from pageable memory waits until the device has finished
all earlier work. One copy from pinned memory costs one launch and no wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNED = 16  # bytes; every array begins at an address that suits any element type
_TORCH = {
    "int64": torch.int64,
    "int32": torch.int32,
    "float32": torch.float32,
    "float64": torch.float64,
    "bool": torch.bool,
}


class Uploaded:
    """One array of an upload."""

    __slots__ = ("array", "tensor")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.tensor: Tensor  # on the device, once the upload is sent


class Upload:
    """The arrays of one step.

    Args:
        device: target of the copy. On a CPU every tensor shares its array's memory, and nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._parts: list[Uploaded] = []

    def add(self, values: Sequence[int] | npt.NDArray[Any], dtype: npt.DTypeLike = np.int64) -> Uploaded:
        """Add int64, int32, float32, float64 or bool values of any shape to the copy."""
        part = Uploaded(np.ascontiguousarray(values, dtype))
        self._parts.append(part)
        return part

    def send(self) -> None:
        """Set the tensors of all parts; work queued on the device's stream after this call sees their values."""
        parts, self._parts = self._parts, []
        if self.device.type == "cpu":
            for part in parts:
                part.tensor = torch.from_numpy(part.array)
            return
        if not parts:
            return
        ends = np.cumsum([-(-part.array.nbytes // _ALIGNED) * _ALIGNED for part in parts]).tolist()
        # Torch caches pinned memory and reuses it only when the copy is done.
        buffer = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        host = buffer.numpy()
        places = list(zip(parts, [0, *ends[:-1]], strict=True))
        for part, first in places:
            host[first : first + part.array.nbytes] = part.array.reshape(-1).view(np.uint8)
        sent = buffer.to(self.device, non_blocking=True)
        for part, first in places:
            raw = sent[first : first + part.array.nbytes]
            part.tensor = raw.view(_TORCH[part.array.dtype.name]).view(part.array.shape)
