"""CUDA graphs of layers, one for each bucket of rows. **Never run on a GPU so far.**

A graph replays launches with the pointers and sizes of its recording. So all that differs between steps is data in
fixed buffers: the rows, and the plan, through which kernels find the rest. A step that does not fit them runs launch by
launch, by the same kernels and to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from engine.cuda.kernels.attention import Partials
from engine.cuda.layer import StepOnDevice
from engine.cuda.occupancy import count_attention_programs
from engine.cuda.operands import Heads
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import PARTIAL_BYTES
from engine.cuda.plan.plan import PlanShape, StepPlan, make_plan
from engine.kv.arena import KVArena

PLAN_INTS = 1 << 19  # of a plan that graphs have room for: 2 MiB

# Takes a bucket's inputs ``[bucket, width]``, the step and the arena; returns outputs ``[bucket, width]``.
RunLayers = Callable[[Sequence[Tensor], StepOnDevice, KVArena], tuple[Tensor, ...]]
_T = TypeVar("_T")


class GraphRecorder:
    """Records the graphs of a stage, which share one memory pool: no two run at the same time."""

    def __init__(self) -> None:
        self._first: torch.cuda.CUDAGraph | None = None

    def record(self, run: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
        """Return a graph of the launches of ``run``, and the result of ``run``, whose tensors a replay overwrites.

        ``run`` is called once before, because kernels cannot be compiled while a graph is recorded.
        """
        run()
        graph = torch.cuda.CUDAGraph()
        pool = None if self._first is None else self._first.pool()
        # thread_local: NCCL's watchdog asks for events meanwhile
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            outcome = run()
        self._first = self._first or graph
        return graph, outcome

    def forget_graphs(self) -> None:
        """Give new graphs a new memory pool; the old one is freed with the last of its graphs."""
        self._first = None


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of rows that share a plan, which graphs record."""

    run: RunLayers
    widths: tuple[int, ...]  # of a row's inputs; (): it reads the plan alone
    heads: Heads  # of the layers; their windows may differ
    dtype: torch.dtype
    device: torch.device
    overlaps: bool = False  # programmatic dependent launch


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A graph with its input and output buffers."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outcome: tuple[Tensor, ...]


class Graphs:
    """Graphs of layers, recorded by ``warm_up``, or before the first step of a bucket.

    Args:
        function: its launches are recorded.
        buckets: numbers of rows.
        recorder: of the stage.
        partial_bytes: room for partial softmaxes.
    """

    def __init__(
        self,
        function: RowFunction,
        buckets: tuple[int, ...],
        recorder: GraphRecorder,
        partial_bytes: int = PARTIAL_BYTES,
    ) -> None:
        self._function, self._buckets, self._recorder = function, buckets, recorder
        self._n_partials = partial_bytes // Partials.count_bytes(1, function.heads.n_heads, function.heads.head_dim)
        self._recorded: dict[int, _Recorded] = {}
        self._plan: Tensor | None = None  # made with the first graph
        self._partials: Partials | None = None

    def run(self, inputs: Sequence[Tensor], plan: StepPlan, ints: Tensor, arena: KVArena) -> tuple[Tensor, ...] | None:
        """Return the outputs for ``inputs`` ``[n, width]`` and the plan; None: the step must run launch by launch."""
        if not self._fits(plan):
            return None
        recorded = self._recorded.get(plan.layout.n_rows)
        if recorded is None:
            recorded = self._record(plan, ints, arena)
        assert self._plan is not None
        self._plan[: len(ints)].copy_(ints)
        for buffer, rows in zip(recorded.inputs, inputs, strict=True):
            buffer[: len(rows)].copy_(rows)
        recorded.graph.replay()
        # Copies: the next step's replay may come before this one's outputs are read.
        return tuple(one[: plan.n_rows].clone() for one in recorded.outcome)

    def warm_up(self, shape: PlanShape, arena: KVArena, attends: bool = True) -> Iterator[str]:
        """Compile all kernels and record all buckets; yields the name of each bucket when it is done."""
        last_block = arena.n_rows // arena.block_size - 1  # belongs to no sequence
        for size in self._buckets:
            blocks = [last_block] * -(-size // arena.block_size)
            plan = make_plan([PathWork(0, size, None, blocks)], shape, attends=attends)
            if self._fits(plan):
                self._record(plan, torch.from_numpy(plan.ints).to(self._function.device), arena)
                yield f"{size} rows"

    def forget_graphs(self) -> None:
        self._recorded.clear()

    def _fits(self, plan: StepPlan) -> bool:
        has_room = plan.n_partials <= self._n_partials and len(plan.ints) <= PLAN_INTS
        return has_room and plan.layout.n_rows in self._buckets

    def _record(self, plan: StepPlan, ints: Tensor, arena: KVArena) -> _Recorded:
        """Record the layers for a plan's bucket; the recording moves no cache rows and writes only to the unused slot.

        A path cannot be moved twice, and a step's rows may be in slots from which a later replay still moves.
        """
        function, heads = self._function, self._function.heads
        if self._plan is None:
            self._plan = torch.zeros(PLAN_INTS, dtype=torch.int32, device=function.device)
            self._partials = Partials.empty(self._n_partials, heads.n_heads, heads.head_dim, function.device)
        assert self._partials is not None
        self._plan[: len(ints)].copy_(ints)
        self._plan[plan.layout.sources].fill_(-1)
        self._plan[plan.layout.slots].fill_(arena.n_rows - 1)
        programs = (count_attention_programs(function.device, heads.n_kv_heads, heads.head_dim),) * len(
            plan.layout.windows
        )
        pieces = (range(heads.n_kv_heads),)
        step = StepOnDevice(self._plan, plan.layout, self._partials, pieces, programs, function.overlaps)
        n_rows = plan.layout.n_rows
        inputs = [torch.zeros(n_rows, width, dtype=function.dtype, device=function.device) for width in function.widths]
        graph, outcome = self._recorder.record(lambda: function.run(inputs, step, arena))
        self._recorded[n_rows] = recorded = _Recorded(graph, inputs, outcome)
        return recorded
