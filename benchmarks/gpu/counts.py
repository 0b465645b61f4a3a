"""How many launches does a step of Llama 8B ask its device for, in both modes?

A launch is a kernel of Triton, an operator of torch that computes or copies, or the replay of a graph. A model of L
layers takes L times "a layer", and "the rest", which has embedding, head, draws and the copies of the step. Kernels and
graphs are counted and compute nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import KernelInterface

from benchmarks.gpu.measuring.models import LLAMA_8B
from benchmarks.gpu.measuring.steps import EXACT, FAST, MakeExecutor, Shape, StageBench, executor_maker
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row

VOCAB = 32000  # smaller than the model's, with as many launches
SHAPES = (Shape(1, 0, 100), Shape(1, 0, 100, is_sampled=True), Shape(1, 63, 100), Shape(32, 15, 100))
_ALLOCATE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_VIEW = {"_unsafe_view", "detach", "lift_fresh"}  # next to operators that say so


class LaunchCounter(TorchDispatchMode):
    """Counts operators in its block; those that are composed of others count as these. New memory is 0."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, counted."""
        name = func.overloadpacket.__name__
        with self:
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        result = func(*args, **(kwargs or {}))
        self.n += not (func.is_view or name in _ALLOCATE | _VIEW)
        return result.zero_() if name in _ALLOCATE else result

    def launch(self, *_: object, **__: object) -> None:
        """Count a launch that computes nothing."""
        self.n += 1


def count_launches(setting: GpuSetting) -> Iterator[Row]:
    """Yield a row for each mode and step, greedy and sampled."""
    for mode, has_graphs in product((EXACT, FAST), (False, True)):
        counts = [_count(setting, n_layers, executor_maker(mode, records=has_graphs)) for n_layers in (1, 2)]
        for shape, one, two in zip(SHAPES, *counts, strict=True):
            step = f"{shape.name}, {'sampled' if shape.is_sampled else 'greedy'}"
            yield {"mode": mode, "graphs": has_graphs, "step": step, "a layer": two - one, "the rest": 2 * one - two}


def _count(setting: GpuSetting, n_layers: int, make: MakeExecutor) -> list[int]:
    """Return the launches of a step of each shape."""
    setting, geometry = replace(setting, dtype=torch.bfloat16, is_tiny=False), replace(LLAMA_8B, vocab=VOCAB)
    bench, found = StageBench(setting, replace(geometry, n_layers=n_layers), make, SHAPES), list[int]()
    counter, substitute = LaunchCounter(), mock.patch.object
    with ExitStack() as stack:
        graph = mock.Mock(replay=counter.launch)
        stack.enter_context(substitute(torch.cuda, "CUDAGraph", return_value=graph))
        stack.enter_context(substitute(torch.cuda, "graph", return_value=nullcontext()))
        stack.enter_context(substitute(KernelInterface, "__getitem__", return_value=counter.launch))
        stack.enter_context(counter)
        for shape in SHAPES:
            step = bench.decode(shape)
            step()
            counter.n = 0
            step()
            found.append(counter.n)
    return found


PARTS = (MeasurementPart("launches", 1, "How many launches has a step?", count_launches),)
