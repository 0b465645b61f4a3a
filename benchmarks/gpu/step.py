"""How far is our step from the bare forward in a CUDA graph, and that from what must be read?

By sequences, rows of each (root and nodes) and context. Limit: weights, keys and values read at the measured bandwidth
of an H200. Products: the matrix products and attention alone, in a graph. Layers: Hugging Face's layers, in a graph and
launched one by one. Step: the engine's, until its tokens are on the host. On a CPU there are no graphs: all are called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from benchmarks.gpu.measuring.bare import Layers, Products, Weights, bare_attention
from benchmarks.gpu.measuring.clock import graphed, queued, waited
from benchmarks.gpu.measuring.geometry import LLAMA_8B, Geometry, sized
from benchmarks.gpu.measuring.random_model import random_model
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.measuring.steps import Decoding, Shape, limit
from benchmarks.gpu.setting import Report, Setting

COLUMNS = {
    "sequences": "sequences",
    "rows": "rows each",
    "context": "context",
    "limit_ms": "limit, ms",
    "products_ms": "products, ms",
    "layers_ms": "layers, ms",
    "eager_ms": "layers without graph, ms",
    "step_ms": "step, ms",
    "ratio": "step / layers",
}


def shapes(tiny: bool) -> list[Shape]:
    """Those that decide most first."""
    if tiny:
        return [Shape(1, 0, 20), Shape(2, 3, 20)]
    return [Shape(n, nodes, context) for context, n, nodes in product((2048, 512, 8192), (1, 4, 16, 64), (0, 15, 63))]


class Bench:
    """Measures steps of one model in turn with the bare work of the same shape."""

    def __init__(self, setting: Setting, geometry: Geometry) -> None:
        self._setting, self._geometry = setting, geometry
        self._model = random_model(geometry, setting.device, setting.dtype)
        self._weights = Weights(setting, geometry)
        self._calls = 3 if setting.tiny else 20

    def measure(self, shape: Shape, table: Rows) -> list[Row]:
        """The row of a shape, with None for what fails. One cache at a time is held: they may be large."""
        setting = self._setting
        bare = shape.sequences, shape.nodes + 1, shape.context
        seconds = {
            name: table.tried(f"{name} of {shape.name}", call)
            for name, call in (
                ("eager", lambda: self._layers(False, *bare)),
                ("step", lambda: waited(setting, Decoding(self._model, shape).step, self._calls)),
                ("layers", lambda: self._layers(True, *bare)),  # graphs last: capturing is what may fail
                ("products", lambda: self._products(*bare)),
            )
        }
        if not any(seconds.values()):
            return []
        return [
            {
                "sequences": shape.sequences,
                "rows": shape.nodes + 1,
                "context": shape.context,
                "limit_ms": limit(self._geometry, setting, shape) * 1e3 if setting.on_cuda else None,
                **{f"{name}_ms": taken and taken * 1e3 for name, taken in seconds.items()},
                "ratio": seconds["step"] / seconds["layers"] if seconds["step"] and seconds["layers"] else None,
            }
        ]

    def _layers(self, graph: bool, *bare: int) -> float:
        layers = Layers(self._setting, self._geometry, self._model, *bare)
        with bare_attention(self._model):
            return self._graph(layers) if graph else queued(self._setting, layers, self._calls)

    def _products(self, *bare: int) -> float:
        return self._graph(Products(self._setting, self._geometry, self._weights, *bare))

    def _graph(self, call: Callable[[], Any]) -> float:
        """Seconds a call, in a graph where there are graphs."""
        return queued(self._setting, graphed(call) if self._setting.on_cuda else call, self._calls)


def run(setting: Setting) -> Report:
    """Measure all shapes."""
    geometry = sized(setting, LLAMA_8B)
    bench = Bench(setting, geometry)
    table = Rows(setting, f"Step against bare forward, {geometry.name}", COLUMNS)
    for shape in shapes(setting.tiny):
        table.attempt(shape.name, partial(bench.measure, shape, table))
    return table.report(
        "Bare forwards attend without a mask and commit nothing; they are timed back to back, the step one by one.",
    )
