"""What one call asks of a device: kernels and their times, copies, and waits of the host, as torch's profiler saw them.

On a CPU, where there is no device to ask anything of, operators and their own times stand for kernels and theirs, and
there are no counts: the same code runs, the figures mean little.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.setting import Setting

# One of these in a trace is one kernel, copy, fill or graph that the host asked for.
LAUNCHES = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaGraphLaunch",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
)
# The latter is not in every version's traces; the profiler itself waits for devices.
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")
TO_DEVICE, TO_HOST = "Memcpy HtoD", "Memcpy DtoH"  # beginnings of names


@dataclass(frozen=True, slots=True)
class Kernel:
    """Everything of one name."""

    name: str
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One call."""

    launches: int | None  # by the host: a graph is one; None, as the next three, where nothing could be counted
    to_device: int | None  # copies
    to_host: int | None
    waits: int | None  # of the host for the device
    kernels: list[Kernel]  # longest first, copies included

    @property
    def seconds(self) -> float:
        """Time that the device was busy, if kernels do not overlap."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def n_kernels(self) -> int:
        """Kernels that ran, those of graphs and copies included."""
        return sum(kernel.times for kernel in self.kernels)


def profiled(setting: Setting, call: Callable[[], object]) -> Profile:
    """Profile one call; what it needs only once should have happened before."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setting.on_cuda else [])]
    setting.synchronize()
    with profile(activities=activities) as trace:
        call()
        setting.synchronize()
    return of_cuda(trace.events()) if setting.on_cuda else of_cpu(trace.key_averages())


def of_cuda(events: Iterable[Any]) -> Profile:
    """From single events: those of the device are kernels and copies, those of the host include the runtime's calls."""
    asked: Counter[str] = Counter()
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.device_type.name == "CPU":
            asked[event.name] += 1
        elif not getattr(event, "is_user_annotation", False):
            taken[event.name].append(event.time_range.elapsed_us() / 1e6)
    if not taken:  # the driver may keep its counters from users
        return Profile(None, None, None, None, [])
    return Profile(
        launches=sum(asked[name] for name in LAUNCHES),
        to_device=sum(len(times) for name, times in taken.items() if name.startswith(TO_DEVICE)),
        to_host=sum(len(times) for name, times in taken.items() if name.startswith(TO_HOST)),
        waits=sum(asked[name] for name in WAITS),
        kernels=_longest(Kernel(name, len(times), sum(times)) for name, times in taken.items()),
    )


def of_cpu(averages: Iterable[Any]) -> Profile:
    """From averages by operator."""
    kernels = _longest(Kernel(one.key, one.count, one.self_cpu_time_total / 1e6) for one in averages)
    return Profile(None, None, None, None, kernels)


def _longest(kernels: Iterable[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: -kernel.seconds)
