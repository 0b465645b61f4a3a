"""Which devices this machine has, told without torch."""

from __future__ import annotations

from pathlib import Path

DEVICES = Path("/dev")


def has_cuda_device() -> bool:
    """Whether the driver shows a device that CUDA could use: ``nvidia0`` and so on, ``dxg`` on Windows' Linux."""
    return any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "dxg").exists()
