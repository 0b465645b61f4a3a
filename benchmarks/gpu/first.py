"""Are results right on this card, and how fast are steps?

Eight minutes on an H100. Results are compared with fp64, with Hugging Face's layers in fp32, or bit by bit with plain
decoding; times with what the card's own memory bandwidth allows, which is measured. The parts are card, attention,
products, tuning, executor, steps, fast and draws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from transformers import LlamaConfig
from triton import knobs

from benchmarks.gpu.exact import WAYS, write_texts
from benchmarks.gpu.kernels import check_draws, check_layers
from benchmarks.gpu.measuring.attention import check_attention, tune_attention
from benchmarks.gpu.measuring.clock import measure_copy_bandwidth, measure_latency
from benchmarks.gpu.measuring.models import LLAMA_8B
from benchmarks.gpu.measuring.products import measure_products
from benchmarks.gpu.measuring.steps import EXACT, FAST, Shape, StageBench, time_prompt, time_steps
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row, attempt

CONTEXT, PROMPT = 2048, 2048
SHAPES = (Shape(1, 0, CONTEXT), Shape(1, 63, CONTEXT), Shape(1, 15, CONTEXT), Shape(32, 15, CONTEXT))
TINY_SHAPES = (Shape(1, 0, 20), Shape(2, 3, 20))
SHORT_TEXTS, TINY_TEXTS = (8, 21, 300, CONTEXT), (2, 5, 20, 70)  # as ``exact.Sizes``
SHORT_WAYS = ("plain, batch 32", "tree, batch 32", "chain, batch 7", "chunks of 64 rows")


def measure_card(setting: GpuSetting) -> Iterator[Row]:
    """Yield the speed of a copy, and compile times of the kernels of one layer of 8B that Triton's cache lacks."""
    copy, n_bytes = measure_copy_bandwidth(setting), LLAMA_8B.bytes_read(setting.dtype, setting.dtype.itemsize)
    free = setting.free_bytes / 1e9
    yield {"copy, GB/s": copy / 1e9, "limit of a step of 8B, ms": n_bytes / copy * 1e3, "free memory, GB": free}
    compiled, shape = defaultdict[str, list[float]](list), Shape(1, 3, 20, is_sampled=True)

    def note(*, metadata: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled[metadata["name"]].append(times.total / 1e6)

    knobs.compilation.listener = note
    bench = StageBench(setting, replace(LLAMA_8B, n_layers=1), [shape])
    warm_up = measure_latency(setting, bench.stage.warm_up, 1, warmup=0)
    bench.prepare(shape)()
    knobs.compilation.listener = None
    for name, taken in sorted(compiled.items(), key=lambda item: -sum(item[1])):
        yield {"kernel": name, "variants": len(taken), "seconds": sum(taken), "longest": max(taken)}
    n, total = sum(map(len, compiled.values())), float(sum(map(sum, compiled.values())))
    yield {"kernel": f"all, of {warm_up:.1f} s of warm-up", "variants": n, "seconds": total, "longest": None}


def check_executor(setting: GpuSetting) -> Iterator[Row]:
    """Run the server's self-test on a layer of 8B; compare short texts with the oracle's, and ways of writing them."""
    yield from check_layers(setting, {"8B": LlamaConfig})
    sizes = TINY_TEXTS if setting.is_tiny else SHORT_TEXTS
    yield from write_texts(setting, sizes, [way for way in WAYS if way.name in SHORT_WAYS])


def time_exact(setting: GpuSetting) -> Iterator[Row]:
    """Time steps in graphs, in graphs whose kernels overlap, and launch by launch; profile the graphs."""
    shapes, few = (TINY_SHAPES, TINY_SHAPES[:1]) if setting.is_tiny else (SHAPES, SHAPES[:2])
    yield from _time(setting, "graph", shapes, n_profiled=2, n_prompt=40 if setting.is_tiny else PROMPT)
    yield from _time(setting, "graph, PDL", few, overlaps=True)
    yield from _time(setting, "launches", few, records=False)


def time_fast(setting: GpuSetting) -> Iterator[Row]:
    """Time steps of numerics fast, and a prompt."""
    shapes, n_prompt = (TINY_SHAPES[:1], 40) if setting.is_tiny else (SHAPES[:2], PROMPT)
    return _time(setting, FAST, shapes, FAST, n_prompt=n_prompt)


def _time(
    setting: GpuSetting, way: str, shapes: Sequence[Shape], mode: str = EXACT, n_profiled: int = 0, n_prompt: int = 0,
    **options: bool,
) -> Iterator[Row]:  # fmt: skip
    def measure() -> Iterator[Row]:
        bench = StageBench(setting, LLAMA_8B, [*shapes, Shape(1, 0, n_prompt)], mode, False, **options)
        yield from time_steps(bench, shapes, way, n_profiled)
        if n_prompt:
            yield from time_prompt(bench, n_prompt, way)

    return attempt(setting, way, measure)


PARTS = (
    MeasurementPart("card", 1, "How fast is the memory, and how long do kernels compile?", measure_card),
    MeasurementPart("attention", 1, "Does it equal fp64, with any values after the end of a row?", check_attention),
    MeasurementPart("products", 1.5, "Are rows equal in every row tile? How fast are weights read?", measure_products),
    MeasurementPart("tuning", 0.5, "Which stages and programs make attention fast?", tune_attention),
    MeasurementPart("executor", 1.5, "Are texts the oracle's, and equal by tree, chain and chunk?", check_executor),
    MeasurementPart("steps", 1.5, "How long are steps of numerics exact, each kernel, and a prompt?", time_exact),
    MeasurementPart("fast", 1, "How long are steps of numerics fast, and a prompt?", time_fast),
    MeasurementPart("draws", 0.5, "Are draws a CPU's, and how long does truncation take?", check_draws),
)
