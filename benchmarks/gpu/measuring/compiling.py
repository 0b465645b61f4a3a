"""How long Triton takes to compile each kernel that steps of a model need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from triton import knobs

from benchmarks.gpu.measuring.clock import measure_copy_bandwidth, measure_latency
from benchmarks.gpu.measuring.models import LLAMA_8B
from benchmarks.gpu.measuring.steps import EXACT, Bench, Shape, executor_maker
from benchmarks.gpu.setting import Row, Setting


def measure_card(setting: Setting) -> Iterator[Row]:
    """Yield the speed of a copy, the time in which it allows to read the weights of 8B, and compile times.

    Compiled are all kernels that one layer of 8B with its head launches when a stage warms up. Those of Triton's cache
    are not counted.
    """
    copy, n_bytes = measure_copy_bandwidth(setting), LLAMA_8B.bytes_read(setting.dtype, setting.dtype.itemsize)
    free = setting.free_bytes / 1e9
    yield {"copy, GB/s": copy / 1e9, "limit of a step of 8B, ms": n_bytes / copy * 1e3, "free memory, GB": free}
    shape = Shape(1, 3, 20, is_sampled=True)
    with _compile_times() as times:
        bench = Bench(setting, replace(LLAMA_8B, n_layers=1), executor_maker(EXACT), [shape])
        warm_up = measure_latency(setting, bench.stage.warm_up, 1, warmup=0)
        bench.decode(shape)()
    for name, taken in sorted(times.items(), key=lambda item: -sum(item[1])):
        yield {"kernel": name, "variants": len(taken), "seconds": sum(taken), "longest": max(taken)}
    n, total = sum(map(len, times.values())), float(sum(map(sum, times.values())))
    yield {"kernel": f"all, of {warm_up:.1f} s of warm-up", "variants": n, "seconds": total, "longest": None}


@contextmanager
def _compile_times() -> Iterator[dict[str, list[float]]]:
    """Collect the seconds of each compilation by the kernel's name."""
    found: defaultdict[str, list[float]] = defaultdict(list)

    def note(*, metadata: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            found[metadata["name"]].append(times.total / 1e6)

    knobs.compilation.listener = note
    try:
        yield found
    finally:
        knobs.compilation.listener = None
