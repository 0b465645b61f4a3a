"""Copies between a stage's device and the host, for links that carry bytes of the host's memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class HostCopies:
    """Copies on a stream of their own: on the stage's they would wait for the steps that were launched meanwhile. On a
    CPU nothing is copied.

    Args:
        device: of the stage.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]

    def to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors that are true, contiguous and in the host's memory; empty ones are left out."""
        with torch.cuda.stream(self._stream):
            return [tensor.detach().contiguous().cpu() for tensor in tensors if tensor.numel()]

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the host on the stage's device, complete when this returns."""
        with torch.cuda.stream(self._stream):
            moved = [tensor.to(self._device) for tensor in tensors]
        if self._stream is not None:
            self._stream.synchronize()
            for tensor in moved:  # made on this stream, read on the stage's
                tensor.record_stream(torch.cuda.default_stream(self._device))
        return moved
