"""Which devices this machine has; torch is loaded only where the driver shows one that it may use."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import ConfigError
from engine.target_model.options import GIB

DEVICES = Path("/dev")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container
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


def memory_bytes(device: str) -> int:
    """Return the memory of this machine that processes may use, for ``cuda`` of its GPUs together; 0: it has none."""
    if device != "cpu":
        import torch

        return sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    limits = [int(text) for path in LIMITS if path.exists() and (text := path.read_text().strip()).isdigit()]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def check_cache(kv_gib: float | str, device: str) -> None:
    """Raise ConfigError if the KV cache of ``--kv-gib`` is larger than the memory of this machine's devices."""
    if kv_gib != AUTO and 0 < (whole := memory_bytes(device)) < float(kv_gib) * GIB:
        where = "this machine" if device == "cpu" else "this machine's GPUs"
        raise ConfigError(f"--kv-gib is {kv_gib:g}; it must be at most {whole / GIB:.1f}, the GiB of memory of {where}")
