"""Times of what a device does, of its kernels, and the speed of its memory."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.setting import GpuSetting, Row

COPY_BYTES = 2 << 30
ANCHOR = "_attend"  # a kernel that runs once in every layer
LONGEST = 8  # kernels outside the layers that are shown


def measure_latency(setting: GpuSetting, call: Callable[[], object], runs: int, warmup: int = 3) -> float:
    """Return the median seconds from a call until the device is idle."""
    taken = []
    for _ in range(warmup + runs):
        setting.synchronize()
        began = time.perf_counter()
        call()
        setting.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[warmup:])


def measure_throughput(setting: GpuSetting, call: Callable[[], object], calls: int = 1) -> float:
    """Return the device's seconds for one of ``calls`` calls, which on CUDA are one graph: the median of five runs."""
    if setting.is_tiny:
        return measure_latency(setting, call, 1, warmup=0)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles kernels and allocates workspaces, which a graph cannot record
        call()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    taken = []
    for _ in range(5):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        taken.append(float(first.elapsed_time(last)) / 1e3 / calls)
    return statistics.median(taken)


def measure_copy_bandwidth(setting: GpuSetting) -> float:
    """Return the bytes a second of a copy in the device's memory, reads and writes counted."""
    n = 1 << 20 if setting.is_tiny else COPY_BYTES
    source, target = (torch.zeros(n, dtype=torch.uint8, device=setting.device) for _ in range(2))
    return 2 * n / measure_throughput(setting, lambda: target.copy_(source), calls=3)


class Kernel(NamedTuple):
    """One run of a kernel or copy, or on a CPU of an operator; times are in us."""

    name: str
    start: float
    end: float


def profile_kernels(setting: GpuSetting, call: Callable[[], object]) -> list[Kernel]:
    """Return the kernels of a call in the order of their starts; none where the driver hides them."""
    setting.synchronize()
    with profile(activities=[ProfilerActivity.CPU if setting.is_tiny else ProfilerActivity.CUDA]) as trace:
        call()
        setting.synchronize()
    events = [one for one in trace.events() if one.device_type.name != "CPU" or setting.is_tiny]
    kernels = [Kernel(one.name, one.time_range.start, one.time_range.end) for one in events]
    return sorted(kernels, key=lambda kernel: kernel.start)


def list_kernels(step: str, kernels: Sequence[Kernel]) -> Iterator[Row]:
    """Yield the kernels of a layer by their place in it, then the longest ones outside the layers.

    A layer begins at its attention. Products have one name, and their places tell them apart: after attention come o,
    gate_up, down, and qkv of the next layer. "gap" is the idle time before a kernel.
    """
    anchors = [place for place, kernel in enumerate(kernels) if kernel.name.startswith(ANCHOR)]
    lengths = [last - first for first, last in pairwise(anchors)]
    length = statistics.mode(lengths) if lengths else 0
    layers = [first for first, n in zip(anchors, lengths, strict=False) if n == length]
    for place in range(length):
        runs = [(kernels[first + place - 1], kernels[first + place]) for first in layers]
        row: Row = {"step": step, "kernel": f"layer, {place + 1}: {runs[0][1].name}", "runs": len(runs)}
        gap = statistics.median(run.start - previous.end for previous, run in runs)
        yield {**row, "us each": statistics.median(run.end - run.start for _, run in runs), "gap, us": gap}
    inside, others = {first + place for first in layers for place in range(length)}, defaultdict[str, list[float]](list)
    for place, kernel in enumerate(kernels):
        if place not in inside:
            others[kernel.name].append(kernel.end - kernel.start)
    for name, taken in sorted(others.items(), key=lambda item: -sum(item[1]))[:LONGEST]:
        row = {"step": step, "kernel": name[:60], "runs": len(taken)}
        yield {**row, "us each": statistics.mean(taken), "gap, us": None}
