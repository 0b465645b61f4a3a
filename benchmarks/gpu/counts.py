"""How many launches does a step ask its device for, in both modes?

Counted in a small model, on the device or on a CPU, where kernels run in Triton's interpreter and graphs are simulated.
A launch is a kernel of Triton, an operator of torch that computes or copies, or the replay of a graph. A model of L
layers takes L times "a layer", and "the rest", which has embedding, head, draws and the copies of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import KernelInterface

from benchmarks.gpu.measuring.models import Geometry
from benchmarks.gpu.measuring.steps import EXACT, FAST, Bench, Shape, executor_maker
from benchmarks.gpu.setting import Part, Row, Setting

SHAPES = (Shape(1, 0, 100), Shape(1, 0, 100, is_sampled=True), Shape(4, 15, 100, is_sampled=True))
# Operators that launch nothing, next to views.
_NO_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach"}


class LaunchCounter(TorchDispatchMode):
    """Counts operators that run inside its block; those that are composed of others count as these."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n, self._is_paused = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, counted."""
        if not self._is_paused:
            with self:
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
            self.n += not (func.is_view or func.overloadpacket.__name__ in _NO_LAUNCH)
        return func(*args, **(kwargs or {}))

    def count_calls(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, each of whose calls is one launch, whatever operators it runs."""

        def counted_call(*args: Any, **options: Any) -> Any:
            self.n, self._is_paused = self.n + 1, True
            try:
                return call(*args, **options)
            finally:
                self._is_paused = False

        return counted_call


class SimulatedGraph:
    """A graph whose replay computes nothing."""

    def pool(self) -> None:
        """It has no memory."""

    def replay(self) -> None:
        """Leave the outputs of the recording."""


def count_launches(setting: Setting) -> Iterator[Row]:
    """Yield a row for each mode and step, greedy and sampled."""
    for mode, has_graphs, shape in product((EXACT, FAST), (False, True), SHAPES):
        one, two = (_count(setting, n_layers, mode, has_graphs, shape) for n_layers in (1, 2))
        yield {
            "mode": mode, "graphs": has_graphs, "step": shape.name, "sampled": shape.is_sampled, "a layer": two - one,
            "the rest": 2 * one - two,
        }  # fmt: skip


def _count(setting: Setting, n_layers: int, mode: str, has_graphs: bool, shape: Shape) -> int:
    """Return the launches of a step."""
    geometry = Geometry("counted", 64, 96, n_layers, 8, 2, 16, 512)
    counter, launcher = LaunchCounter(), KernelInterface.__getitem__
    graph: Any = torch.cuda.CUDAGraph if setting.is_cuda else SimulatedGraph
    setting = replace(setting, is_tiny=False)  # the geometry is small as it is

    def launch(kernel: Any, grid: Any) -> Callable[..., Any]:
        return counter.count_calls(launcher(kernel, grid))

    with ExitStack() as stack:
        if not setting.is_cuda:
            stack.enter_context(mock.patch.object(torch.cuda, "CUDAGraph", graph))
            stack.enter_context(mock.patch.object(torch.cuda, "graph", return_value=nullcontext()))
        stack.enter_context(mock.patch.object(graph, "replay", counter.count_calls(graph.replay)))
        stack.enter_context(mock.patch.object(KernelInterface, "__getitem__", launch))
        step = Bench(setting, geometry, executor_maker(mode, records=has_graphs), [shape]).decode(shape)
        step()
        counter.n = 0
        with counter:
            step()
        return counter.n


PARTS = (Part("launches", 1, "How many launches has a step?", count_launches),)
