"""Times a step on a CUDA stream, and waits for its end."""

from __future__ import annotations

import torch


class DeviceWork:
    """The work that the current stream of a device gets until ``end``. Implements ``engine.stage.base.Computing``.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._began.record(self._stream)

    def end(self) -> None:
        """Mark the end of the step."""
        self._ended.record(self._stream)

    def wait(self) -> float:
        """See ``Computing.wait``; releases the interpreter's lock meanwhile."""
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1e3


def begin(device: torch.device) -> DeviceWork | None:
    """Begin the work of a step on a device; None on a CPU, where calls return when their work is done."""
    return DeviceWork(device) if device.type == "cuda" else None
