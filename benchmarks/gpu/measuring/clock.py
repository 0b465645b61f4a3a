"""Times of what a device does: medians of single calls, and of many calls that are only waited for at the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.gpu.setting import Setting


def waited(setting: Setting, call: Callable[[], object], runs: int, warmup: int = 3) -> float:
    """Median seconds from a call until the device has done what it asked for: what a user of it waits."""
    for _ in range(warmup):
        call()
    setting.synchronize()
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        setting.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def queued(setting: Setting, call: Callable[[], object], calls: int, warmup: int = 3) -> float:
    """Seconds a call where they follow each other without waiting: the device's time, or the host's if that is longer.

    On CUDA between two events, on a CPU by its clock.
    """
    for _ in range(warmup):
        call()
    setting.synchronize()
    if not setting.on_cuda:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / calls


def graphed(call: Callable[[], object], calls: int = 1) -> Callable[[], None]:
    """A CUDA graph of ``calls`` calls, ready to be replayed. Its inputs and outputs stay where they are."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what a library allocates at its first call must not be part of the graph
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph.replay


def copy_bandwidth(setting: Setting) -> float:
    """Bytes a second of a copy in the device's memory, read and written counted: what any kernel can reach."""
    n = 1 << 20 if setting.tiny else 4 << 30
    source, target = (torch.zeros(n, dtype=torch.uint8, device=setting.device) for _ in range(2))
    return 2 * n / queued(setting, lambda: target.copy_(source), 3 if setting.tiny else 10)
