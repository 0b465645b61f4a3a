"""Where does the present step on 8B lose its time, and how far apart do trees and plain steps lie?

Three tables. Steps: time of a step by sequences, nodes and context, against the time in which its weights, keys and
values can be read; kernels, launches, copies and waits of the host in one step. Rounding: logits of one text scored
token by token, as a chain, as a path of a tree and as a chunk of prompt, against fp32. Kernels: the longest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.gpu.measuring.clock import waited
from benchmarks.gpu.measuring.geometry import LLAMA_8B, Geometry, sized
from benchmarks.gpu.measuring.profiling import profiled
from benchmarks.gpu.measuring.random_model import random_model
from benchmarks.gpu.measuring.rounding import rounding
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.measuring.steps import HBM, Decoding, Shape, limit
from benchmarks.gpu.setting import Report, Setting

N_KERNELS = 8  # of each step that are shown
STEPS = {
    "sequences": "sequences",
    "nodes": "nodes each",
    "context": "context",
    "drawing": "drawing",
    "step_ms": "step, ms",
    "device_ms": "device busy, ms",
    "limit_ms": "limit, ms",
    "kernels": "kernels",
    "launches": "launches",
    "to_device": "copies to the device",
    "to_host": "copies to the host",
    "waits": "stream waits",
}
KERNELS = {"step": "step", "name": "kernel", "times": "times", "ms": "ms", "share": "share of busy time"}


def shapes(tiny: bool) -> list[Shape]:
    """Those that decide most first."""
    if tiny:
        return [Shape(1, 0, 20), Shape(2, 5, 20, sampled=True)]
    first = [Shape(n, nodes, 2048) for n in (1, 8, 32) for nodes in (0, 16, 63)]
    sampled = [Shape(n, nodes, 2048, sampled=True) for n in (1, 8) for nodes in (0, 63)]
    return [*first, *sampled, *(replace(shape, context=context) for context in (512, 8192) for shape in first)]


def dissected(shapes: Sequence[Shape]) -> Sequence[Shape]:
    """Those whose kernels are shown: one token, one tree, and the largest batch."""
    return shapes[:1] if len(shapes) < 3 else [shapes[0], shapes[2], shapes[7]]


class Steps:
    """Measures steps of one model."""

    def __init__(self, setting: Setting, geometry: Geometry, model: Any) -> None:
        self._setting, self._geometry, self._model = setting, geometry, model
        self.kernels: list[Row] = []

    def measure(self, shape: Shape, with_kernels: bool) -> list[Row]:
        """The row of a shape; its longest kernels are kept if wanted."""
        step = Decoding(self._model, shape).step
        seconds = waited(self._setting, step, 3 if self._setting.tiny else 20)
        found = profiled(self._setting, step)
        if with_kernels:
            self.kernels += [
                {
                    "step": shape.name,
                    "name": kernel.name,
                    "times": kernel.times,
                    "ms": kernel.seconds * 1e3,
                    "share": kernel.seconds / found.seconds,
                }
                for kernel in found.kernels[:N_KERNELS]
            ]
        return [
            {
                "sequences": shape.sequences,
                "nodes": shape.nodes,
                "context": shape.context,
                "drawing": shape.drawing,
                "step_ms": seconds * 1e3,
                "device_ms": found.seconds * 1e3 if found.kernels else None,
                "limit_ms": limit(self._geometry, self._setting, shape) * 1e3 if self._setting.on_cuda else None,
                "kernels": found.n_kernels or None,
                "launches": found.launches,
                "to_device": found.to_device,
                "to_host": found.to_host,
                "waits": found.waits,
            }
        ]


def run(setting: Setting) -> Report:
    """Measure steps, then rounding, then the steps of other contexts."""
    geometry = sized(setting, LLAMA_8B)
    model = random_model(geometry, setting.device, setting.dtype)
    steps = Steps(setting, geometry, model)
    table = Rows(setting, f"Present step, {geometry.name}", STEPS)
    grid = shapes(setting.tiny)
    shown = dissected(grid)
    errors = None
    for shape in grid:
        if errors is None and shape.context != grid[0].context:
            errors = rounding(setting, geometry, model)
        measure: Callable[[], list[Row]] = partial(steps.measure, shape, shape in shown)
        table.attempt(shape.name, measure)
    errors = errors or rounding(setting, geometry, model)
    kernels = Rows(setting, "Longest kernels of a step", KERNELS, steps.kernels)
    return table.report(
        "A step ends when its tokens are on the host; schedule and drafting are not part of it.",
        f"The limit is what must be read at {HBM / 1e12} TB/s; device busy and counts are of one profiled step, "
        "dashes where the profiler may not see the device.",
        further=(errors, kernels),
    )
