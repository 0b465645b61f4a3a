"""Which devices this machine has; torch is loaded only where the driver shows one that it may use."""

from __future__ import annotations

from pathlib import Path

DEVICES = Path("/dev")
AUTO = "auto"


def has_cuda_device() -> bool:
    """Whether the driver shows a device that CUDA could use: ``nvidia0`` and so on, ``dxg`` on Windows' Linux."""
    return any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "dxg").exists()


def device_named(given: str) -> str:
    """``auto`` is cuda where torch sees a GPU, and else cpu; all other names are as they are."""
    if given != AUTO:
        return given
    if not has_cuda_device():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
