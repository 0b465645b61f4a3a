"""What does a step of Llama 70B take: a stage of 20 layers in bf16, and int8 layers on one GPU?

A stage of four is 20 layers; here it has embedding and head as well. In int8 as many of the 80 layers are measured as
fit next to the cache of 32 sequences of 2,048 tokens. Six minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks.gpu.measuring.models import LLAMA_70B
from benchmarks.gpu.measuring.steps import EXACT, FAST, Shape, StageBench, time_steps
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row, attempt

CONTEXT = 2048
SHAPES = tuple(Shape(*one, CONTEXT) for one in ((1, 0), (1, 15), (1, 63), (8, 0), (8, 7), (32, 0), (32, 15)))
TINY_SHAPES = (Shape(1, 0, 64), Shape(1, 5, 64))


def time_layers(setting: GpuSetting, n_layers: int, is_int8: bool) -> Iterator[Row]:
    """Yield the times of steps in both modes; weights of one byte are multiplied by one kernel in either."""
    shapes, geometry = TINY_SHAPES if setting.is_tiny else SHAPES, replace(LLAMA_70B, n_layers=n_layers)

    def measure(mode: str) -> Iterator[Row]:
        yield from time_steps(StageBench(setting, geometry, shapes, mode, is_int8), shapes, mode)

    for mode in (EXACT,) if is_int8 else (EXACT, FAST):
        yield from attempt(setting, mode, partial(measure, mode))


PARTS = (
    MeasurementPart("bf16", 3, "How long is a step of 20 layers?", partial(time_layers, n_layers=20, is_int8=False)),
    MeasurementPart("int8", 3, "And of all int8 layers that fit?", partial(time_layers, n_layers=80, is_int8=True)),
)
