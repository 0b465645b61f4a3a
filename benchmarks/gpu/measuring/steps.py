"""Steps of sequences that decode or read a prompt, each repeated from the same place, and tables of their times.

A step's time does not depend on the values of keys, so the context is not computed: 32 sequences of 8k tokens are ready
at once. Results are compared elsewhere (``scoring``, ``exact``).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.gpu.measuring.clock import list_kernels, measure_copy_bandwidth, profile_kernels
from benchmarks.gpu.measuring.models import BLOCK, Geometry, fit_layers, make_llama, shrink
from benchmarks.gpu.setting import GpuSetting, Row
from engine.cuda.executor import Executor
from engine.cuda.products import Products
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.tree import ROOT, TokenTree

ENDLESS = 1 << 30  # tokens
EXACT, FAST = "exact", "fast"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sequences that decode, each with a tree."""

    sequences: int
    nodes: int  # of each tree
    context: int  # committed tokens of each sequence, the root not counted
    is_sampled: bool = False

    @property
    def blocks_each(self) -> int:
        """KV blocks of a sequence with its tree."""
        return -(-(self.context + 1 + self.nodes) // BLOCK)


def make_bushy_tree(n_nodes: int, vocab: int) -> TokenTree:
    """Return a tree with eight children of the root; every other node's parent is one of the twelve before it."""
    rng = random.Random(0)
    parents = [ROOT] * min(8, n_nodes)
    parents += [rng.randrange(max(0, node - 12), node) for node in range(len(parents), n_nodes)]
    return TokenTree([rng.randrange(vocab) for _ in range(n_nodes)], parents)


class StepTimes(NamedTuple):
    """Seconds of a step."""

    total: float  # until its tokens are on the host
    plan: float  # until it is planned, packed and its upload is queued
    host: float  # until its layers are queued
    layers: float  # until the device has run them, if that is waited for


class StageBench:
    """One stage of a model with random weights and room for ``shapes``, cut to as many layers as fit the card.

    Its graphs are recorded when a step first needs them. ``mode`` is ``EXACT`` or ``FAST``; with ``is_int8`` weights of
    layers have one byte; ``options`` are the executor's.
    """

    def __init__(
        self, setting: GpuSetting, geometry: Geometry, shapes: Sequence[Shape], mode: str = EXACT,
        is_int8: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.setting, n_blocks = setting, max(shape.sequences * shape.blocks_each for shape in shapes)
        self.weight_bytes = 1 if is_int8 else setting.dtype.itemsize
        fitting = fit_layers(geometry, setting.free_bytes, self.weight_bytes, n_blocks * BLOCK)
        self.geometry = shrink(setting, fitting)
        self.model = make_llama(setting, self.geometry, is_int8)
        spec, longest = read_spec(self.model.config, ()), max(shape.context + shape.nodes + 2 for shape in shapes)
        shard = ModelShard(self.model, spec, split_layers(spec.n_layers, 1)[0], longest + BLOCK)
        self.executor, self._number = Executor(shard, Products(by_library=mode == FAST), **options), 0
        self.stage = Stage(shard, n_blocks, BLOCK, executor=self.executor)

    def forward(self, work: list[Work], starts: Sequence[SequenceStart] = ()) -> tuple[Activations, float]:
        """Run the layers of a step; returns their output, and the time at which the step was planned."""
        self._number += 1
        step = Step(self._number, work, list(starts))
        self.stage.admit(step)
        self.stage.prepare(step)
        planned = time.perf_counter()
        return self.stage.forward(step, None), planned

    def run(self, work: list[Work], starts: Sequence[SequenceStart] = (), waits: bool = False) -> StepTimes:
        """Run a step and return its times."""
        began = time.perf_counter()
        activations, planned = self.forward(work, starts)
        queued = time.perf_counter()
        if waits:
            self.setting.synchronize()
        layers = time.perf_counter()
        self.stage.verify(activations)
        return StepTimes(time.perf_counter() - began, planned - began, queued - began, layers - began)

    def prepare(self, shape: Shape) -> Callable[..., StepTimes]:
        """Return a function that runs a step of a shape, always from the same place; forgets earlier sequences."""
        self.stage.reset()
        params = SamplingParams(max_tokens=ENDLESS, temperature=0.8 if shape.is_sampled else 0.0, seed=1)
        vocab, each, sequences = self.geometry.vocab, shape.blocks_each, range(shape.sequences)
        starts = [SequenceStart(seq, params, shape.context, Needs()) for seq in sequences]
        blocks = [list(range(seq * each, (seq + 1) * each)) for seq in sequences]
        self.run([Work(seq, 0, [0], new_blocks=blocks[seq], draw=False) for seq in sequences], starts)
        drafted = make_bushy_tree(shape.nodes, vocab)

        def run_step(waits: bool = False) -> StepTimes:
            trees = [TokenTree(drafted.tokens, drafted.parents) for _ in sequences]  # what a tree caches is new work
            given = shape.context, [self._number % vocab]
            return self.run([Work(seq, *given, trees[seq], max_new=ENDLESS) for seq in sequences], waits=waits)

        return run_step


def time_steps(bench: StageBench, shapes: Sequence[Shape], way: str, n_profiled: int = 0) -> Iterator[Row]:
    """Yield a row for each shape, with times as in ``StepTimes``, then the kernels of the first ``n_profiled`` steps.

    "limit": weights, keys and values at the speed of a copy; "of copy": the speed at which weights of layers are read,
    over a copy's; "device": from the first kernel's start to the last one's end, by a profiler.
    """
    setting, geometry, copy = bench.setting, bench.geometry, measure_copy_bandwidth(bench.setting)
    (runs, warmup), profiles = (1, 0) if setting.is_tiny else (20, 3), list[list[Row]]()
    for shape in shapes:
        run_step, name = bench.prepare(shape), f"{shape.sequences} x {shape.nodes} nodes"
        taken = [run_step() for _ in range(warmup + runs)][warmup:]
        total, plan, host, _ = map(statistics.median, zip(*taken, strict=True))
        layers = statistics.median(run_step(waits=True).layers for _ in range(runs))
        kernels = profile_kernels(setting, run_step)
        profiles.append(list(list_kernels(name, kernels)))
        device = (max(kernel.end for kernel in kernels) - kernels[0].start) / 1e3 if kernels else None
        limit = geometry.bytes_read(setting.dtype, bench.weight_bytes, shape.sequences * shape.context) / copy
        of_copy = bench.weight_bytes * geometry.n_layers * geometry.layer_weights / layers / copy
        yield {
            "way": way, "layers": geometry.n_layers, "step": name, "context": shape.context,
            "limit, ms": limit * 1e3, "step, ms": total * 1e3, "of limit": total / limit,
            "layers, ms": layers * 1e3, "of copy": of_copy,
            "device, ms": device, "host, ms": host * 1e3, "plan, ms": plan * 1e3,
        }  # fmt: skip
    for rows in profiles[:n_profiled]:
        yield from rows


def time_prompt(bench: StageBench, n_tokens: int, way: str) -> Iterator[Row]:
    """Yield the time of a prompt that is read in one step."""
    start = SequenceStart(0, SamplingParams(max_tokens=ENDLESS), n_tokens, Needs())
    tokens, taken = [place % bench.geometry.vocab for place in range(n_tokens)], []
    for _ in range(2 if bench.setting.is_tiny else 6):
        bench.stage.reset()
        taken.append(bench.run([Work(0, 0, tokens, new_blocks=list(range(-(-n_tokens // BLOCK))))], [start]).total)
    seconds = statistics.median(taken[1:])  # the first one compiles
    flops = 2e-12 * n_tokens * bench.geometry.n_layers * bench.geometry.layer_weights
    yield {"way": way, "prompt tokens": n_tokens, "ms": seconds * 1e3, "TFLOP/s of products": flops / seconds}
