"""Are results right on this card, and how fast are steps?

Eight minutes on an H100. Results are compared with fp64, with Hugging Face's layers in fp32, or bit by bit with plain
decoding; times with what the card's own memory bandwidth allows, which is measured. The parts are card, attention,
products, tuning, executor, steps, fast and draws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from triton import knobs

from benchmarks.gpu.kernels import check_draws
from benchmarks.gpu.measuring import steps
from benchmarks.gpu.measuring.attention import check_attention, tune_attention
from benchmarks.gpu.measuring.clock import measure_copy_bandwidth, measure_latency
from benchmarks.gpu.measuring.models import LLAMA_8B
from benchmarks.gpu.measuring.products import measure_products
from benchmarks.gpu.measuring.scoring import compare_ways
from benchmarks.gpu.measuring.steps import EXACT, FAST, Shape, StageBench, executor_maker
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row, attempt

CONTEXT, PROMPT = 2048, 2048
SHAPES = (Shape(1, 0, CONTEXT), Shape(1, 63, CONTEXT), Shape(1, 15, CONTEXT), Shape(32, 15, CONTEXT))
TINY_SHAPES = (Shape(1, 0, 20), Shape(2, 3, 20))


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
    bench = StageBench(setting, replace(LLAMA_8B, n_layers=1), executor_maker(EXACT), [shape])
    warm_up = measure_latency(setting, bench.stage.warm_up, 1, warmup=0)
    bench.decode(shape)()
    knobs.compilation.listener = None
    for name, taken in sorted(compiled.items(), key=lambda item: -sum(item[1])):
        yield {"kernel": name, "variants": len(taken), "seconds": sum(taken), "longest": max(taken)}
    n, total = sum(map(len, compiled.values())), float(sum(map(sum, compiled.values())))
    yield {"kernel": f"all, of {warm_up:.1f} s of warm-up", "variants": n, "seconds": total, "longest": None}


def check_executor(setting: GpuSetting) -> Iterator[Row]:
    """Compare logits of 8B with the oracle's, and ways of scoring with each other."""
    contexts = (30,) if setting.is_tiny else (300, CONTEXT)
    bench = StageBench(setting, LLAMA_8B, executor_maker(EXACT), [Shape(1, 63, contexts[-1])])
    for n_context in contexts:
        yield from compare_ways(bench, n_context)


def time_exact(setting: GpuSetting) -> Iterator[Row]:
    """Time steps in graphs, in graphs whose kernels overlap, and launch by launch; profile the graphs."""
    shapes = TINY_SHAPES if setting.is_tiny else SHAPES

    def measure(way: str, some: Sequence[Shape], **options: bool) -> Iterator[Row]:
        bench = StageBench(setting, LLAMA_8B, executor_maker(EXACT, **options), some)
        yield from steps.time_steps(bench, some, way)
        if not options:
            yield from steps.profile_steps(bench, some[:2])

    few = shapes[:1] if setting.is_tiny else shapes[:2]
    yield from attempt(setting, "graph", partial(measure, "graph", shapes))
    yield from attempt(setting, "graph, PDL", partial(measure, "graph, PDL", few, overlaps=True))
    yield from attempt(setting, "launches", partial(measure, "launches", few, records=False))


def time_fast(setting: GpuSetting) -> Iterator[Row]:
    """Time steps of numerics fast, and a prompt in both modes."""
    shapes, n_tokens = (TINY_SHAPES[:1], 40) if setting.is_tiny else (SHAPES[:2], PROMPT)

    def measure(mode: str) -> Iterator[Row]:
        bench = StageBench(setting, LLAMA_8B, executor_maker(mode), [*shapes, Shape(1, 0, n_tokens)])
        if mode == FAST:
            yield from steps.time_steps(bench, shapes, "fast, graph")
        yield from steps.time_prompt(bench, n_tokens, mode)

    for mode in (FAST, EXACT):
        yield from attempt(setting, mode, partial(measure, mode))


PARTS = (
    MeasurementPart("card", 1, "How fast is the memory, and how long do kernels compile?", measure_card),
    MeasurementPart(
        "attention", 1, "Is attention what fp64 says, and does nothing after a row's end matter?", check_attention
    ),
    MeasurementPart(
        "products", 1.5, "Are rows equal in every row tile, and how fast are weights read?", measure_products
    ),
    MeasurementPart("tuning", 0.5, "Which stages and programs make attention fast?", tune_attention),
    MeasurementPart(
        "executor", 1.5, "Are logits the oracle's, and equal plainly, in a tree and in a chunk?", check_executor
    ),
    MeasurementPart("steps", 1.5, "How long are steps of numerics exact, and which kernels take the time?", time_exact),
    MeasurementPart("fast", 1, "How long are steps of numerics fast, and a prompt in both modes?", time_fast),
    MeasurementPart("draws", 0.5, "Are draws a CPU's, and how long does truncation take?", check_draws),
)
