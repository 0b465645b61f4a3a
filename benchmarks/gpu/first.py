"""Are results right on this card, and how fast are steps?

Eight minutes on an H100. Results are compared with fp64, with Hugging Face's layers in fp32, or bit by bit with plain
decoding; times with what the card's own memory bandwidth allows, which is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

from benchmarks.gpu.measuring.attention import check_attention, tune_attention
from benchmarks.gpu.measuring.compiling import measure_card
from benchmarks.gpu.measuring.draws import check_draws
from benchmarks.gpu.measuring.models import LLAMA_8B, fit_layers, make_random_model, shrink
from benchmarks.gpu.measuring.products import check_products, time_products
from benchmarks.gpu.measuring.scoring import compare_ways
from benchmarks.gpu.measuring.steps import (
    EXACT,
    FAST,
    Bench,
    Shape,
    executor_maker,
    profile_steps,
    time_prompt,
    time_steps,
)
from benchmarks.gpu.setting import Part, Row, Setting, attempt

CONTEXT, PROMPT = 2048, 2048
SHAPES = (Shape(1, 0, CONTEXT), Shape(1, 63, CONTEXT), Shape(1, 15, CONTEXT), Shape(32, 15, CONTEXT))
TINY_SHAPES = (Shape(1, 0, 20), Shape(2, 3, 20))


def check_executor(setting: Setting) -> Iterator[Row]:
    """Compare logits of 8B with the oracle's, and ways of scoring with each other."""
    geometry = shrink(setting, fit_layers(LLAMA_8B, setting.free_bytes, setting.dtype.itemsize, 4096))
    model = make_random_model(geometry, setting.device, setting.dtype)
    for n_context in (30,) if setting.is_tiny else (300, CONTEXT):
        yield from compare_ways(setting, geometry, model, executor_maker(EXACT), n_context)


def time_exact(setting: Setting) -> Iterator[Row]:
    """Time steps in graphs, in graphs whose kernels overlap, and launch by launch; profile the graphs."""
    shapes = TINY_SHAPES if setting.is_tiny else SHAPES

    def measure(way: str, some: Sequence[Shape], **options: bool) -> Iterator[Row]:
        bench = Bench(setting, LLAMA_8B, executor_maker(EXACT, **options), some)
        yield from time_steps(bench, some, way)
        if not options:
            yield from profile_steps(bench, some[:2])

    few = shapes[:1] if setting.is_tiny else shapes[:2]
    yield from attempt(setting, "graph", partial(measure, "graph", shapes))
    yield from attempt(setting, "graph, PDL", partial(measure, "graph, PDL", few, overlaps=True))
    yield from attempt(setting, "launches", partial(measure, "launches", few, records=False))


def time_fast(setting: Setting) -> Iterator[Row]:
    """Time steps of numerics fast, and a prompt in both modes."""
    shapes, n_tokens = (TINY_SHAPES[:1], 40) if setting.is_tiny else (SHAPES[:2], PROMPT)

    def measure(mode: str) -> Iterator[Row]:
        bench = Bench(setting, LLAMA_8B, executor_maker(mode), [*shapes, Shape(1, 0, n_tokens)])
        if mode == FAST:
            yield from time_steps(bench, shapes, "fast, graph")
        yield from time_prompt(bench, n_tokens, mode)

    for mode in (FAST, EXACT):
        yield from attempt(setting, mode, partial(measure, mode))


def check_and_time_products(setting: Setting) -> Iterator[Row]:
    """Check all products, then time them."""
    return chain(check_products(setting), time_products(setting))


PARTS = (
    Part("card", 1, "How fast is the memory, and how long do kernels compile?", measure_card),
    Part("attention", 1, "Is attention what fp64 says, and does nothing after a row's end matter?", check_attention),
    Part("products", 1.5, "Are rows equal in every row tile, and how fast are weights read?", check_and_time_products),
    Part("tuning", 0.5, "Which stages and programs make attention fast?", tune_attention),
    Part("executor", 1.5, "Are logits the oracle's, and equal plainly, in a tree and in a chunk?", check_executor),
    Part("steps", 1.5, "How long are steps of numerics exact, and which kernels take the time?", time_exact),
    Part("fast", 1, "How long are steps of numerics fast, and a prompt in both modes?", time_fast),
    Part("draws", 0.5, "Are draws a CPU's, and how long does truncation take?", check_draws),
)
