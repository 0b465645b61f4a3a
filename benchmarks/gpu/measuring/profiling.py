"""The kernels of one call, as torch's profiler sees them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.setting import Row, Setting

ANCHOR = "_attend"  # a kernel that runs once in every layer
LONGEST = 8  # kernels outside the layers that are shown


@dataclass(frozen=True, slots=True)
class Kernel:
    """One run of a kernel or copy; on a CPU, where there are none, of an operator."""

    name: str
    start: float  # us
    end: float


def profile_kernels(setting: Setting, call: Callable[[], object]) -> list[Kernel]:
    """Return the kernels of a call in the order of their starts; none where the driver hides them."""
    setting.synchronize()
    with profile(activities=[ProfilerActivity.CUDA if setting.is_cuda else ProfilerActivity.CPU]) as trace:
        call()
        setting.synchronize()
    events = [one for one in trace.events() if one.device_type.name != "CPU" or not setting.is_cuda]
    kernels = [Kernel(one.name, one.time_range.start, one.time_range.end) for one in events]
    return sorted(kernels, key=lambda kernel: kernel.start)


def device_seconds(kernels: Sequence[Kernel]) -> float | None:
    """Return the seconds from the first kernel's start to the last one's end, with the gaps between them."""
    return (max(kernel.end for kernel in kernels) - kernels[0].start) / 1e6 if kernels else None


def kernel_rows(step: str, kernels: Sequence[Kernel]) -> Iterator[Row]:
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
        each = statistics.median(run.end - run.start for _, run in runs)
        gap = statistics.median(run.start - previous.end for previous, run in runs)
        name = f"layer, {place + 1}: {runs[0][1].name}"
        yield {"step": step, "kernel": name, "runs": len(runs), "us each": each, "gap, us": gap}
    inside, others = {first + place for first in layers for place in range(length)}, defaultdict[str, list[float]](list)
    for place, kernel in enumerate(kernels):
        if place not in inside:
            others[kernel.name].append(kernel.end - kernel.start)
    for name, taken in sorted(others.items(), key=lambda item: -sum(item[1]))[:LONGEST]:
        mean = statistics.mean(taken)
        yield {"step": step, "kernel": name[:60], "runs": len(taken), "us each": mean, "gap, us": None}
