"""What a step tells its device: arrays gathered on the host, which reach the device together, in one copy.

A copy of its own for every list costs a launch each, and from pageable memory the host waits until the device has done
everything before it. One copy from pinned memory costs one launch and no wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNED = 16  # bytes: every array begins where any element type may
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
        device: where they go. On a CPU every tensor is its array's memory, and nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._parts: list[Uploaded] = []

    def add(self, values: Sequence[int] | npt.NDArray[Any], dtype: npt.DTypeLike = np.int64) -> Uploaded:
        """Take part in the copy: int64, int32, float32, float64 or bool values of any shape."""
        part = Uploaded(np.ascontiguousarray(values, dtype))
        self._parts.append(part)
        return part

    def send(self) -> None:
        """Fill in the tensors of all parts; behind this call on the device's stream they have their values."""
        parts, self._parts = self._parts, []
        if self.device.type == "cpu":
            for part in parts:
                part.tensor = torch.from_numpy(part.array)
            return
        if not parts:
            return
        ends = np.cumsum([-(-part.array.nbytes // _ALIGNED) * _ALIGNED for part in parts]).tolist()
        # Pinned memory comes from torch's cache, which hands it out again only when the copy is done.
        buffer = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        host = buffer.numpy()
        places = list(zip(parts, [0, *ends[:-1]], strict=True))
        for part, first in places:
            host[first : first + part.array.nbytes] = part.array.reshape(-1).view(np.uint8)
        sent = buffer.to(self.device, non_blocking=True)
        for part, first in places:
            raw = sent[first : first + part.array.nbytes]
            part.tensor = raw.view(_TORCH[part.array.dtype.name]).view(part.array.shape)
