"""Finds the processor cores, GPUs and memory that this process may use. Loads torch only if the driver shows a GPU."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import ConfigError
from engine.target_model.options import GIB

DEVICES = Path("/dev")
SYSTEM = Path("/sys")
AUTO = "auto"


def default_threads(n_stages: int = 1) -> int:
    """Return the threads of each of ``n_stages`` stages on this machine; one core is left to the other processes."""
    return max(1, (usable_cores() - 1) // n_stages)


def usable_cores() -> int:
    """Return the physical cores that this process may run on, at most the CPU quota of its cgroup; at least 1."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    topology = SYSTEM / "devices/system/cpu"
    # The list of a core's hardware threads identifies the core; without a list each thread counts as a core.
    cores = {_read(topology / f"cpu{i}/topology/thread_siblings_list") or str(i) for i in os.sched_getaffinity(0)}
    quota, _, period = _read_cgroup("cpu.max").partition(" ")  # version 2
    if not period:
        quota, period = _read_cgroup("cpu/cpu.cfs_quota_us"), _read_cgroup("cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit():
        return max(1, min(len(cores), int(quota) // int(period)))
    return len(cores)


def has_cuda_device() -> bool:
    """Return whether the driver shows a device for CUDA: ``nvidia0`` and so on, or ``dxg`` on Windows' Linux."""
    return any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "dxg").exists()


def device_named(given: str) -> str:
    """Return cuda or cpu for ``auto``, depending on whether torch sees a GPU; any other name unchanged."""
    if given != AUTO:
        return given
    if not has_cuda_device():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def memory_bytes(device: str) -> int:
    """Return the memory that processes on this machine may use, or for ``cuda`` that of all its GPUs; 0: no GPU."""
    if device != "cpu":
        import torch

        return sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    limits = (_read_cgroup("memory.max"), _read_cgroup("memory/memory.limit_in_bytes"))  # versions 2 and 1
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *(int(n) for n in limits if n.isdigit())])


def check_cache(kv_gib: float | str, device: str) -> None:
    """Raise ConfigError if the KV cache of ``--kv-gib`` is larger than the memory of this machine's devices."""
    if kv_gib != AUTO and 0 < (whole := memory_bytes(device)) < float(kv_gib) * GIB:
        where = "this machine" if device == "cpu" else "this machine's GPUs"
        raise ConfigError(f"--kv-gib is {kv_gib:g}; it must be at most {whole / GIB:.1f}, the GiB of memory of {where}")


def _read_cgroup(name: str) -> str:
    return _read(SYSTEM / "fs/cgroup" / name)


def _read(file: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
