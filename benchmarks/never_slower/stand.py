"""Runs turns of cells: every method on the same prompts and seeds, in alternation."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from app.bench.meter import FailureCount
from app.bench.runs import rotated
from benchmarks.never_slower.cells import AUTO, CPU, NONE, Cell
from benchmarks.never_slower.engines import Clock, ClockedEngine, VirtualEngine
from benchmarks.never_slower.machines import MACHINES, costs_by, simulated_costs
from benchmarks.never_slower.record_file import Turn
from benchmarks.never_slower.streams import GO_ON, MethodRun, StreamWorkload
from engine.scheduling.scheduler import SchedulerOptions
from engine.step import Step
from engine.step_cost import StepCosts
from engine.target_model.loading import describe_target, load_layers, whole_range
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

SLICE_S = 0.05  # seconds of this process that a method runs in a row
TOGETHER = 16  # streams up to which methods alternate inside a turn; above, their caches would fill the memory
NODES = {CPU: 64}  # of a tree: what a server defaults to
GPU_NODES = 63
WARM_UP = 16  # tokens of a text that is not measured: first steps touch memory and compile
ROOM = 128  # slots of a stream's cache beside its text, for trees


class MethodComparison:
    """Engines, speculators and step times of all machines.

    Speculators live as long as the stand, one pool for every machine and method, as they do in a server.

    Args:
        model: checkpoint directory; it writes the texts of all machines.
        prompts: by kind, as token ids.
        fixed: methods that ``auto`` is compared with, in addition to none; as ``MethodRun`` takes them.
        tokens: of a text.
        clock: of this process.
    """

    def __init__(
        self, model: Path, prompts: Mapping[str, Sequence[list[int]]], fixed: Sequence[str], tokens: int, clock: Clock
    ) -> None:
        options = TargetOptions(str(model))
        self._info = describe_target(options, model)
        self._shard = load_layers(options, model, whole_range(self._info.spec), self._info)
        self._longest = min(self._info.max_model_len, GO_ON * tokens + max(map(len, chain(*prompts.values()))))
        self._prompts = {
            kind: [ids for ids in some if len(ids) + tokens <= self._longest] for kind, some in prompts.items()
        }
        self._fixed, self._tokens, self._clock = fixed, tokens, clock
        self._costs: dict[str, StepCosts] = {}
        self._pools: dict[tuple[str, str], SpeculatorPool] = {}

    def turn(self, cell: Cell, number: int, methods: Sequence[str]) -> Turn:
        """One turn of a cell; its number decides prompts, seeds and the order of methods."""
        wanted = self._wanted(cell, number)
        order = rotated(methods, number)[:: -1 if number % 2 else 1]
        with FailureCount() as failures:
            if cell.streams > TOGETHER:
                runs = [self._finished(cell, number, method, wanted) for method in order]
            else:
                runs = [self._run(cell, number, method, wanted) for method in order]
                alternate(runs)
            for run in runs:
                run.close()
            n_failures = failures.take()
        return {run.method: run.record(n_failures) for run in runs}

    def forget(self) -> None:
        """Let the next turn begin with speculators that have seen no text."""
        self._pools.clear()

    def warm_up(self, machine: str) -> None:
        """Let every method run once, uncounted; measures the step times of the machine before."""
        kind = next(iter(self._prompts))
        for method in (AUTO, NONE, *self._fixed):
            cell = Cell(machine, kind, 0.0, 2)
            run = self._run(cell, 0, method, self._wanted(cell, 0, min(WARM_UP, self._tokens)))
            run.advance(float("inf"))
            run.close()
        gc.collect()
        gc.freeze()

    def _finished(self, cell: Cell, number: int, method: str, wanted: StreamWorkload) -> MethodRun:
        run = self._run(cell, number, method, wanted)
        run.advance(float("inf"))
        return run

    def _run(self, cell: Cell, number: int, method: str, wanted: StreamWorkload) -> MethodRun:
        costs = self._costs_of(cell.machine)
        key = cell.machine, method
        if key not in self._pools:
            self._pools[key] = SpeculatorPool(SpeculatorOptions(step_costs=costs))
        n, machine = cell.streams, MACHINES.get(cell.machine)
        n_stages = 1 if machine is None else machine.profile.stages
        options = SchedulerOptions(max_sequences=n, max_waiting=n, n_micro_batches=n_stages, prefix_cache=False)
        target, pool = self._target(n), self._pools[key]
        engine = (
            ClockedEngine(target, pool, options, costs, self._clock)
            if machine is None
            else VirtualEngine(target, pool, options, costs, machine, self._clock)
        )
        return MethodRun(cell, number, method, engine, wanted)

    def _target(self, streams: int) -> LocalTarget:
        """A fresh one on the weights of all, with a cache for so many streams."""
        n_blocks = streams * -(-(self._longest + ROOM) // self._info.block_size)
        return LocalTarget(replace(self._info, n_blocks=n_blocks), [self._shard])

    def _costs_of(self, machine: str) -> StepCosts:
        if machine not in self._costs:
            if machine == CPU:
                self._costs[machine] = self._measured()
            else:
                self._costs[machine] = simulated_costs(MACHINES[machine], self._info)
        return self._costs[machine]

    def _measured(self) -> StepCosts:
        """Step times of the model on this CPU."""
        target = LocalTarget(self._info, [self._shard])

        def taken(step: Step) -> float:
            began = self._clock()
            target.step(step)
            return self._clock() - began

        return costs_by(taken, self._info)

    def _wanted(self, cell: Cell, number: int, tokens: int = 0) -> StreamWorkload:
        tokens = tokens or self._tokens
        every, n = self._prompts[cell.prompts], cell.streams
        places = [number * n + i for i in range(n)]
        return StreamWorkload(
            [every[place % len(every)] for place in places],
            [1 + place for place in places],
            tokens,
            self._info.spec.eos_ids,
            self._longest,
            NODES.get(cell.machine, GPU_NODES),
        )


def alternate(runs: Sequence[MethodRun], slice_s: float = SLICE_S) -> None:
    """Let runs go on in turns to their ends, the one that is furthest behind first: whatever the machine does
    meanwhile, it does to all."""
    todo = list(runs)
    while todo:
        behind = min(todo, key=lambda run: run.progress)
        behind.advance(slice_s)
        if behind.is_done:
            todo.remove(behind)
