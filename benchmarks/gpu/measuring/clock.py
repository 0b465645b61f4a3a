"""Times of what a device does, and the speed of its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.gpu.setting import Setting

COPY_BYTES = 2 << 30


def measure_latency(setting: Setting, call: Callable[[], object], runs: int, warmup: int = 3) -> float:
    """Return the median seconds from a call until the device is idle."""
    taken = []
    for _ in range(warmup + runs):
        setting.synchronize()
        began = time.perf_counter()
        call()
        setting.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[warmup:])


def measure_throughput(setting: Setting, call: Callable[[], object], calls: int = 1, runs: int = 5) -> float:
    """Return the device's seconds for one of ``calls`` calls, which on CUDA are one graph: the median of runs."""
    if not setting.is_cuda:
        return measure_latency(setting, call, 1, warmup=0)
    graph = record_graph(call, calls)
    graph.replay()
    taken = []
    for _ in range(runs):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        taken.append(float(first.elapsed_time(last)) / 1e3 / calls)
    return statistics.median(taken)


def record_graph(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
    """Return a graph of ``calls`` calls."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles kernels and allocates workspaces, which a graph cannot record
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def measure_copy_bandwidth(setting: Setting) -> float:
    """Return the bytes a second of a copy in the device's memory, reads and writes counted."""
    n = 1 << 20 if setting.is_tiny else COPY_BYTES
    source, target = (torch.zeros(n, dtype=torch.uint8, device=setting.device) for _ in range(2))
    return 2 * n / measure_throughput(setting, lambda: target.copy_(source), calls=3)
