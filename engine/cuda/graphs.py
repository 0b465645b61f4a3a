"""A step's moves and layers as recorded CUDA graphs, one for each bucket of rows. **Never run on a GPU so far.**

A graph replays launches with the pointers and sizes of their recording, so all that differs between steps is data in
buffers that stay: rows, and the plan, through which kernels find the rest. A step that does not fit them runs launch by
launch, by the same kernels and to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cuda.kernels.attention import PROGRAMS, Partials
from engine.cuda.layer import StepOnDevice
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import PARTIAL_BYTES
from engine.cuda.plan.plan import Plan, PlanShape, make_plan
from engine.cuda.recorder import Recorder
from engine.kv.arena import KVArena
from engine.model.shard import ModelShard

PLAN_INTS = 1 << 19  # of a plan that graphs have room for: 2 MiB

RunLayers = Callable[[Tensor | None, StepOnDevice, KVArena], Tensor]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A graph, and where its rows come and go."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor | None  # [bucket, hidden]; on the first stage the plan tells tokens
    outcome: Tensor  # [bucket, hidden]


class Graphs:
    """Graphs of a stage's layers, recorded when they are warmed up, or when their bucket is first used.

    Args:
        run_layers: moves and all layers, over rows or the plan's tokens.
        shard: the layers' sizes.
        buckets: of rows.
        recorder: of graphs.
        partial_bytes: of partial softmaxes that there is room for.
    """

    def __init__(
        self,
        run_layers: RunLayers,
        shard: ModelShard,
        buckets: tuple[int, ...],
        recorder: Recorder,
        partial_bytes: int = PARTIAL_BYTES,
    ) -> None:
        spec, self._recorder = shard.spec, recorder
        self._run_layers, self._buckets, self._embeds = run_layers, buckets, shard.range.is_first
        self._n_heads, self._n_kv_heads, self._head_dim = spec.n_heads, spec.n_kv_heads, spec.head_dim
        self._dtype, self._device, self._width = shard.dtype, shard.device, spec.hidden_size
        self._n_partials = partial_bytes // Partials.bytes_of(1, spec.n_heads, spec.head_dim)
        self._recorded: dict[int, _Recorded] = {}
        self._plan: Tensor | None = None  # with the first graph
        self._partials: Partials | None = None

    def run(self, hidden: Tensor | None, plan: Plan, ints: Tensor, arena: KVArena) -> Tensor | None:
        """All layers over ``hidden`` ``[n, width]``, or over tokens; None: the step has to run launch by launch.

        The first step of a bucket that was not warmed up is recorded before it runs.
        """
        if not self._fits(plan):
            return None
        recorded = self._recorded.get(plan.layout.n_rows)
        if recorded is None:
            recorded = self.record(plan, ints, arena)
        assert self._plan is not None
        self._plan[: len(ints)].copy_(ints)
        if hidden is not None and recorded.rows is not None:
            recorded.rows[: len(hidden)].copy_(hidden)
        recorded.graph.replay()
        return recorded.outcome[: plan.n_rows].clone()  # the next step's replay may come before this one's is read

    def warm_up(self, shape: PlanShape, arena: KVArena) -> Iterator[str]:
        """Compile all kernels and record all buckets; names what was done, one by one."""
        nobodys = arena.n_rows // arena.block_size - 1
        for size in self._buckets:
            blocks = [nobodys] * -(-size // arena.block_size)
            plan = make_plan([PathWork(0, size, None, blocks)], shape)
            if self._fits(plan):
                self.record(plan, torch.from_numpy(plan.ints).to(self._device), arena)
                yield f"layers over {size} rows"

    def _fits(self, plan: Plan) -> bool:
        return (
            plan.layout.n_rows in self._buckets and plan.n_partials <= self._n_partials and len(plan.ints) <= PLAN_INTS
        )

    def record(self, plan: Plan, ints: Tensor, arena: KVArena) -> _Recorded:
        """Record the layers for a plan's bucket. Meanwhile nothing moves, and rows are written where no sequence is.

        A path that was moved cannot be moved again, and a step's rows may stand where one is still to be moved from.
        """
        if self._plan is None:
            self._plan = torch.zeros(PLAN_INTS, dtype=torch.int32, device=self._device)
            self._partials = Partials.empty(self._n_partials, self._n_heads, self._head_dim, self._device)
        assert self._partials is not None
        self._plan[: len(ints)].copy_(ints)
        self._plan[plan.layout.sources].fill_(-1)
        self._plan[plan.layout.slots].fill_(arena.n_rows - 1)
        programs = (max(1, PROGRAMS // self._n_kv_heads),) * len(plan.layout.windows)
        step = StepOnDevice(self._plan, plan.layout, self._partials, (range(self._n_kv_heads),), programs)
        n_rows = plan.layout.n_rows
        rows = None if self._embeds else torch.zeros(n_rows, self._width, dtype=self._dtype, device=self._device)
        graph, outcome = self._recorder.record(lambda: self._run_layers(rows, step, arena))
        self._recorded[n_rows] = recorded = _Recorded(graph, rows, outcome)
        return recorded
