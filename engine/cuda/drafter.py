"""Runs a trained drafter next to an executor: its own modules with the executor's attention, in one graph a forward.

Only targets promise bits that do not depend on other rows, so torch computes products and norms. Attention reads a
plan, as the target's does. A drafted tree is a set of paths after the last committed row, whose earlier levels have
run. A block of slots that see each other attends as if all of them stood at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.cuda.graphs import GraphRecorder, Graphs, RowFunction, RunLayers
from engine.cuda.layer import StepOnDevice, attend_step
from engine.cuda.operands import Heads
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import BUCKETS, DRAFTER_PARTIAL_BYTES, SPLIT
from engine.cuda.plan.plan import PlanShape, StepPlan, make_plan
from engine.drafter.serving.forwards import ModuleForwards, NetworkCalls, write_rows
from engine.drafter.serving.rows import DraftRows
from engine.kv.arena import KVArena
from engine.upload import Upload


class KernelForwards:
    """Runs rows by CUDA graphs if they fit one. Implements ``engine.drafter.serving.forwards.Forwards``.

    Args:
        calls: of the network.
        arena: keys and values of its layers; the last row belongs to no sequence.
        split: positions of a split of attention.
        buckets: of rows.
        records: whether to record forward passes as graphs; None: on CUDA only.
    """

    def __init__(
        self,
        calls: NetworkCalls,
        arena: KVArena,
        split: int = SPLIT,
        buckets: tuple[int, ...] = BUCKETS,
        records: bool | None = None,
    ) -> None:
        shape, self._arena = calls.shape, arena
        self._calls, self._by_modules = calls, ModuleForwards(calls, arena)
        self._heads = Heads(shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.head_dim**-0.5, shape.window)
        groups, size, scratch = shape.n_heads // shape.n_kv_heads, self._arena.block_size, self._arena.n_rows - 1
        self._plan_shape = PlanShape.of({shape.window}, groups, size, scratch, split, buckets)
        keys = self._arena.layer(0).keys
        self._device, self._dtype = keys.device, keys.dtype
        recorder = GraphRecorder() if (self._device.type == "cuda" if records is None else records) else None
        # A plan has one window end for all rows of a block.
        self._is_planned = not (calls.block and shape.window is not None)
        planned = recorder if self._is_planned else None
        self._forwards = self._graphs_of(planned, self._forward, calls.widths, DRAFTER_PARTIAL_BYTES)
        self._contexts = self._graphs_of(recorder, self._context, (shape.hidden_size,), 0)

    def _graphs_of(
        self, recorder: GraphRecorder | None, run: RunLayers, widths: tuple[int, ...], partial_bytes: int
    ) -> Graphs | None:
        if recorder is None:
            return None
        function = RowFunction(run, widths, self._heads, self._dtype, self._device)
        return Graphs(function, self._plan_shape.buckets, recorder, partial_bytes)

    def run(self, rows: Sequence[DraftRows], inputs: Sequence[Tensor]) -> Tensor:
        """Return the rows' outputs; modules run blocks of layers with a window."""
        if not self._is_planned:
            return self._by_modules.run(rows, inputs)
        plan = make_plan([_work(its) for its in rows], self._plan_shape)
        [outputs] = self._run(self._forwards, self._forward, plan, inputs)
        return outputs

    def keep(self, rows: Sequence[DraftRows], states: Tensor) -> None:
        """Write keys and values of states to their slots."""
        plan = make_plan([_work(its) for its in rows], self._plan_shape, attends=False)
        self._run(self._contexts, self._context, plan, [states])

    def warm_up(self) -> Iterator[str]:
        """Compile kernels and record forward passes of all sizes."""
        if self._forwards is not None:
            yield from map("the drafter over {}".format, self._forwards.warm_up(self._plan_shape, self._arena))
        if self._contexts is not None and self._calls.context is not None:
            done = self._contexts.warm_up(self._plan_shape, self._arena, attends=False)
            yield from map("what the drafter keeps of {}".format, done)

    def _run(
        self, graphs: Graphs | None, run: RunLayers, plan: StepPlan, inputs: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        upload = Upload(self._device)
        sent = upload.add(plan.ints, np.int32)
        upload.send()
        with torch.cuda.device_of(sent.tensor):  # type: ignore[no-untyped-call]  # launches go to the current device
            found = None if graphs is None else graphs.run(inputs, plan, sent.tensor, self._arena)
            if found is None:
                step = StepOnDevice.of(plan, sent.tensor, self._heads, DRAFTER_PARTIAL_BYTES)
                padded = [rows.new_zeros(plan.layout.n_rows, rows.shape[1]) for rows in inputs]
                for whole, rows in zip(padded, inputs, strict=True):
                    whole[: plan.n_rows] = rows
                found = tuple(one[: plan.n_rows] for one in run(padded, step, self._arena))
        return found

    def _forward(self, inputs: Sequence[Tensor], step: StepOnDevice, arena: KVArena) -> tuple[Tensor, ...]:
        """Run the network over a bucket's rows."""
        seen, slots = (step.plan[place].long() for place in (step.layout.positions, step.layout.slots))
        if n_slots := self._calls.block:  # rows see up to the last one of their block
            seen = seen - (n_slots - 1) + torch.arange(len(seen), device=seen.device) % n_slots

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            store = arena.layer(layer)
            store.keys.index_copy_(0, slots, key)
            store.values.index_copy_(0, slots, value)
            return attend_step(query.flatten(1).contiguous(), store, step, self._heads).view_as(query)

        return (self._calls.run(inputs, seen, attend),)

    def _context(self, inputs: Sequence[Tensor], step: StepOnDevice, arena: KVArena) -> tuple[Tensor, ...]:
        """Write keys and values of a bucket's states to their slots."""
        assert self._calls.context is not None, "this network keeps rows"
        positions, slots = (step.plan[place].long() for place in (step.layout.positions, step.layout.slots))
        write_rows(arena, slots, self._calls.context(inputs[0], positions))
        return ()


def _work(rows: DraftRows) -> PathWork:
    """Return a sequence's rows as a plan takes them; a tree's root is the last row in the cache, which has run."""
    blocks = rows.table.block_array
    if rows.parents is None:
        return PathWork(rows.n_before, rows.n_rows, None, blocks, rows.n_run, rows.is_block)
    return PathWork(rows.n_before - 1, rows.n_rows + 1, rows.parents, blocks, rows.n_run + 1)
