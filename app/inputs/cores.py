"""Processor cores that this process may use, and how many threads a stage on a CPU computes with."""

from __future__ import annotations

import os
from pathlib import Path

SYSTEM = Path("/sys")


def default_threads(n_stages: int = 1) -> int:
    """Threads of each of ``n_stages`` stages that share this machine: one core is left to the other processes."""
    return max(1, (usable_cores() - 1) // n_stages)


def usable_cores() -> int:
    """Physical cores among the processors that this process may run on, within the quota of its cgroup; at least 1."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = {_core_of(processor) for processor in os.sched_getaffinity(0)}
    return max(1, min(len(cores), _quota()))


def _core_of(processor: int) -> str:
    """The processors of a core, which differs between cores; of an unknown core, the processor alone."""
    topology = SYSTEM / f"devices/system/cpu/cpu{processor}/topology"
    return _read(topology / "thread_siblings_list") or str(processor)


def _quota() -> int:
    """Whole cores of the cgroup's quota (version 2, then 1); without a quota more than any machine has."""
    quota, _, period = _read(SYSTEM / "fs/cgroup/cpu.max").partition(" ")
    if not period:
        quota = _read(SYSTEM / "fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _read(SYSTEM / "fs/cgroup/cpu/cpu.cfs_period_us")
    return int(quota) // int(period) if quota.isdigit() and period.isdigit() else 1 << 20


def _read(file: Path) -> str:
    """The text of a file; "" where it cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
