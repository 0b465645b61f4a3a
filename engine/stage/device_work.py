"""A step on a CUDA stream: when it is over, and how long the device took for it."""

from __future__ import annotations

import torch


class DeviceWork:
    """What the current stream of a device gets between the construction and ``end``. Implements
    ``engine.stage.base.Computing``.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._began.record(self._stream)

    def end(self) -> None:
        """Nothing more belongs to the step."""
        self._ended.record(self._stream)

    def wait(self) -> float:
        """As ``Computing.wait``: the interpreter's lock is free meanwhile, and a failure of the device shows here."""
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1e3


def begin(device: torch.device) -> DeviceWork | None:
    """The work that begins on a device; None on a CPU, where calls return when their work is done."""
    return DeviceWork(device) if device.type == "cuda" else None
