"""Runs turns of cells: every method on the same prompts and seeds, in alternation."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp

from app.bench.meter import FailureCount
from app.bench.schedule import rotated
from benchmarks.never_slower.cells import AUTO, CPU, NONE, Cell, CellTurn
from benchmarks.never_slower.engines import ClockedEngine, VirtualEngine, clock
from benchmarks.never_slower.machines import MACHINES, costs_by, simulated_costs
from benchmarks.never_slower.streams import MethodRun, StreamWorkload
from benchmarks.support.path_scorer import PathScorer, RecordedRows, blocks_of
from benchmarks.support.recording import BATCH, TextArchive, TextJob
from benchmarks.support.replay import RecordedTarget
from engine.model.identity import model_hash
from engine.model.shard import ModelShard
from engine.scheduling.scheduler import SchedulerOptions
from engine.step import Step
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo
from engine.target_model.loading import describe_target, load_layers, whole_range
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

SLICE_S = 0.05  # seconds of this process that a method runs in a row
NODES = {CPU: 64}  # of a tree: what a server defaults to
GPU_NODES = 63
WARM_UP = 16  # tokens of a text that is not measured: first steps touch memory and compile
ROOM = 128  # slots of a stream's cache in addition to its text, for trees


@dataclass(frozen=True, slots=True)
class StandOptions:
    """What is measured, and how."""

    model: Path  # checkpoint directory; it writes the texts of all machines
    fixed: Mapping[str, Sequence[str]]  # machine -> methods in addition to none and auto; as ``MethodRun`` takes them
    tokens: Mapping[str, int]  # machine -> of a text, at most
    n_texts: int  # different texts of a kind and temperature, at most
    archive: Path | None = None  # folder of recorded texts; None: a temporary one
    is_cold: bool = False  # whether speculators forget everything before every turn


class MethodComparison:
    """Engines, speculators and step times of all machines.

    Unless they are to be cold, speculators live as long as the stand, one pool for every machine and method, as they do
    in a server.

    Args:
        options: of the measurement.
        prompts: by kind, as token ids.
    """

    def __init__(self, options: StandOptions, prompts: Mapping[str, Sequence[list[int]]]) -> None:
        self._options, self._prompts = options, prompts
        self._target_options = TargetOptions(str(options.model))
        self._info = describe_target(self._target_options, options.model)
        self._longest = max(options.tokens.values()) + max(map(len, chain(*prompts.values())))
        self._archive = TextArchive(options.archive or Path(mkdtemp()), model_hash(options.model))
        self._costs: dict[str, StepCosts] = {}
        self._pools: dict[tuple[str, str], SpeculatorPool] = {}
        self._replays: dict[Sequence[TextJob], tuple[RecordedRows, PathScorer]] = {}
        self._shard: ModelShard | None = None  # loaded when first used: replays run without it

    def turn(self, cell: Cell, number: int, methods: Sequence[str]) -> CellTurn:
        """Run one turn of a cell; its number decides prompts, seeds and the order of methods."""
        if self._options.is_cold:
            self._pools.clear()
        jobs, n = self.jobs(cell), cell.texts_of_turn
        workload = StreamWorkload(jobs, number * n % len(jobs), n, NODES.get(cell.machine, GPU_NODES))
        order = rotated(methods, number)[:: -1 if number % 2 else 1]
        with FailureCount() as failures:
            runs = [self._run(cell, method, workload) for method in order]
            alternate(runs)
            for run in runs:
                run.close()
            n_failures = failures.take()
        return CellTurn(cell, number, {run.method: run.record(n_failures) for run in runs})

    def jobs(self, cell: Cell) -> tuple[TextJob, ...]:
        """Return the different texts of a cell: one of each prompt if greedy, otherwise also of several seeds."""
        prompts, most = self._prompts[cell.prompts], self._options.n_texts
        numbers = range(min(most, len(prompts)) if cell.temperature == 0.0 else most)
        tokens, ends = self._options.tokens[cell.machine], self._info.spec.eos_ids
        return tuple(TextJob(tuple(prompts[i % len(prompts)]), 1 + i, cell.temperature, tokens, ends) for i in numbers)

    def record(self, cells: Sequence[Cell]) -> None:
        """Record the texts of simulated cells that the archive lacks."""
        simulated = [cell for cell in cells if cell.machine != CPU]
        for kind in dict.fromkeys(cell.prompts for cell in simulated):
            lists = dict.fromkeys(self.jobs(cell) for cell in simulated if cell.prompts == kind)
            firsts = range(0, self._options.n_texts, BATCH)
            # Other texts of a prompt follow soon, while its prefix is cached.
            ordered = [job for first in firsts for jobs in lists for job in jobs[first : first + BATCH]]
            if self._archive.missing(ordered):
                self._archive.record(self._local(self._with_room(2 * BATCH)), ordered, kind)

    def warm_up(self, cells: Sequence[Cell]) -> None:
        """Let every method run once on every machine, uncounted; measures the step times of the machine before."""
        for machine, cell in {cell.machine: cell for cell in cells}.items():
            jobs = self.jobs(cell)
            if machine == CPU:
                jobs = tuple(job._replace(max_tokens=WARM_UP) for job in jobs)
            for method in (AUTO, NONE, *self._options.fixed[machine]):
                workload = StreamWorkload(jobs, 0, 2, NODES.get(machine, GPU_NODES))
                run = self._run(cell._replace(streams=2), method, workload)
                run.advance(float("inf"))
                run.close()
        self._pools.clear()  # a speculator's own timings include compiling
        gc.collect()
        gc.freeze()

    def _run(self, cell: Cell, method: str, workload: StreamWorkload) -> MethodRun:
        costs = self._costs_of(cell.machine)
        key = cell.machine, method
        if key not in self._pools:
            self._pools[key] = SpeculatorPool(SpeculatorOptions(step_costs=costs))
        n, pool, machine = cell.streams, self._pools[key], MACHINES.get(cell.machine)
        if machine is None:
            options = SchedulerOptions(max_sequences=n, max_waiting=n, prefix_cache=False)
            clocked = ClockedEngine(self._local(self._with_room(n)), pool, options, costs)
            return MethodRun(n, method, clocked, workload)
        stages = machine.profile.stages
        options = SchedulerOptions(max_sequences=n, max_waiting=n, n_micro_batches=stages, prefix_cache=False)
        target = self._replay(workload.jobs, n)
        engine = VirtualEngine(target, pool, options, costs, machine)
        return MethodRun(n, method, engine, workload, target.assign)

    def _replay(self, jobs: Sequence[TextJob], streams: int) -> RecordedTarget:
        """Return a fresh target that writes recorded texts."""
        if jobs not in self._replays:
            rows, size = RecordedRows(self._archive.read(jobs)), self._info.block_size
            info = replace(self._info, n_blocks=sum(blocks_of(rows.texts, size)))
            self._replays = {jobs: (rows, PathScorer(lambda: self._local(info), rows, size))}  # the latest alone
        return RecordedTarget(self._with_room(streams), *self._replays[jobs])

    def _local(self, info: TargetInfo) -> LocalTarget:
        """Return a fresh target on the weights of all."""
        if self._shard is None:
            self._shard = load_layers(
                self._target_options, self._options.model, whole_range(self._info.spec), self._info
            )
        return LocalTarget.of_shards(info, [self._shard])

    def _with_room(self, streams: int) -> TargetInfo:
        """Return the description of a target with a cache for so many streams."""
        return replace(self._info, n_blocks=streams * -(-(self._longest + ROOM) // self._info.block_size))

    def _costs_of(self, machine: str) -> StepCosts:
        if machine not in self._costs:
            if machine == CPU:
                self._costs[machine] = self._measured()
            else:
                self._costs[machine] = simulated_costs(MACHINES[machine], self._info)
        return self._costs[machine]

    def _measured(self) -> StepCosts:
        """Return the step times of the model on this CPU."""
        target = self._local(self._info)

        def taken(step: Step) -> float:
            began = clock()
            target.step(step)
            return clock() - began

        return costs_by(taken, self._info)


def alternate(runs: Sequence[MethodRun], slice_s: float = SLICE_S) -> None:
    """Continue all runs to their ends in slices, the one that is furthest behind first: a busy machine slows all of
    them alike."""
    todo = list(runs)
    while todo:
        behind = min(todo, key=lambda run: run.progress)
        behind.advance(slice_s)
        if behind.is_done:
            todo.remove(behind)
