"""Runs a stage's layers by the kernels of this room; with exact ``Products`` a row's bits depend on its text alone.

It uses the weights of a ``ModelShard`` and replaces that shard's ``run`` and ``logits``. On CUDA a step of ordinary
size replays one recorded graph; Triton's interpreter runs the same launches one by one on a CPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from engine.attention.packed_step import CapturedQuery, PackedStep
from engine.cuda.answers import LogitsReader
from engine.cuda.graphs import GraphRecorder, Graphs, RowFunction
from engine.cuda.head import Head
from engine.cuda.kernels.rows import MOST_MOVES, embed, move_rows
from engine.cuda.layer import StepOnDevice, run_layer
from engine.cuda.operands import Embedding
from engine.cuda.plan.layout import BUCKETS, PARTIAL_BYTES, SPLIT
from engine.cuda.plan.plan import PlanShape, StepPlan, compile_planner
from engine.cuda.planned_step import PlannedStep
from engine.cuda.products import Products
from engine.cuda.weights import pack_layers
from engine.kv.arena import KVArena
from engine.model.shard import ModelShard

logger = logging.getLogger(__name__)


class Executor:
    """Runs one stage: the embedding (first stage only), its layers, and ``answers`` (last stage only).

    Ranks of a stage run the same steps; ``answers`` is rank 0's, and the others give it ``head_part``.

    Args:
        shard: has the weights; its modules share them from now on.
        products: multiplies rows by weights; None: exactly.
        split: positions of a split of attention; the same on all stages.
        buckets: numbers of rows.
        partial_bytes: room for the partial softmaxes of a layer; a step that needs more attends piece by piece.
        records: whether steps become graphs; None: on CUDA.
        taps: local layers whose outputs graphs return as well; a trained drafter reads them in every step.
        overlaps: whether a layer's kernels start while the previous one ends (programmatic dependent launch).

    Raises:
        UnsupportedModelError: a part of the model has no kernel.
    """

    def __init__(
        self,
        shard: ModelShard,
        products: Products | None = None,
        split: int = SPLIT,
        buckets: tuple[int, ...] = BUCKETS,
        partial_bytes: int = PARTIAL_BYTES,
        records: bool | None = None,
        taps: Collection[int] = (),
        overlaps: bool = False,
    ) -> None:
        self._shard, self._taps, self._overlaps = shard, sorted(set(taps)), overlaps
        self._products = products or Products()
        compile_planner()
        self._layers = pack_layers(shard)
        self._embedding = Embedding.of(shard.embedding) if shard.range.is_first else None
        if shard.device.type == "cuda":
            torch.cuda.empty_cache()  # frees the unfused matrices: NCCL and graphs use memory outside it
        self._split, self._buckets, self._partial_bytes = split, buckets, partial_bytes
        records = shard.device.type == "cuda" if records is None else records
        self._recorder = recorder = GraphRecorder() if records else None
        self._graphs = None
        if recorder is not None:
            widths = () if shard.range.is_first else (shard.spec.hidden_size,)
            function = RowFunction(self._run_static, widths, self._layers[0].heads, shard.dtype, shard.device, overlaps)
            self._graphs = Graphs(function, buckets, recorder, partial_bytes)
        self._head = Head(shard, self._products) if shard.range.is_last else None
        self.answers = None
        if self._head is not None and shard.share.rank == 0:
            self.answers = LogitsReader(shard, self._head, buckets, recorder)

    def plan_shape(self, arena: KVArena) -> PlanShape:
        """Return how steps are planned; the arena's last row belongs to no sequence."""
        groups, windows = self._shard.spec.groups, self._shard.windows
        return PlanShape.of(windows, groups, arena.block_size, arena.n_rows - 1, self._split, self._buckets)

    def warm_up(self, arena: KVArena, answers: bool = True, more_work: Iterable[str] = ()) -> None:
        """Compile kernels and record steps, with their answers unless ``answers`` is False; ``more_work`` runs last.

        A kind of step that is not recorded here (see ``LogitsReader.warm_up``) is recorded when it first comes.
        """
        if self._graphs is None:
            return
        logger.info("compiling kernels and recording steps")
        began = time.monotonic()
        with torch.cuda.device_of(arena.layer(0).keys):  # type: ignore[no-untyped-call]
            done = map("layers over {}".format, self._graphs.warm_up(self.plan_shape(arena), arena))
            of_answers = self.answers.warm_up() if answers and self.answers is not None else ()
            for name in chain(done, self._warm_up_head_part(), of_answers, more_work):
                logger.info("recorded %s, %.1f s after the beginning", name, time.monotonic() - began)

    def _warm_up_head_part(self) -> Iterator[str]:
        """Compile the products by a head that ranks share, which graphs of answers leave out."""
        shard = self._shard
        if self._head is not None and self._head.is_sharded:
            for size in self._buckets:
                self._head.part(torch.zeros(size, shard.spec.hidden_size, dtype=shard.dtype, device=shard.device))
            yield "the part of the head"

    def forget_graphs(self) -> None:
        """Drop all graphs, whose exchanges belong to a lost connection between ranks; ``warm_up`` records new ones."""
        if self._graphs is not None:
            self._graphs.forget_graphs()
        if self.answers is not None:
            self.answers.forget_graphs()
        if self._recorder is not None:
            self._recorder.forget_graphs()

    def embed(self, packed: PackedStep) -> Tensor:
        """Return the embeddings of the step's tokens, ``[1, n, hidden]``, for a trained drafter that reads them."""
        assert isinstance(packed, PlannedStep), "an executor's steps are planned"
        plan = packed.plan
        with torch.cuda.device_of(packed.ints.tensor):  # type: ignore[no-untyped-call]  # launches go to the current device
            return self._embed(packed.ints.tensor[plan.layout.tokens])[: plan.n_rows].unsqueeze(0)

    def run(
        self, hidden: Tensor | None, packed: PackedStep, taps: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Move cache rows as the step says, then run all layers.

        A step that captures queries or taps other layers than ``taps`` of the executor, and a first stage that reads an
        embedding instead of tokens, cannot replay a CUDA graph: they run launch by launch.

        Args:
            hidden: ``[1, n, hidden]``; None: the first stage embeds the plan's tokens.
            packed: a ``PlannedStep``.
            taps: local layers whose outputs are returned as well.

        Returns:
            The last layer's output ``[1, n, hidden]``, and those of tapped layers.
        """
        assert isinstance(packed, PlannedStep), "an executor's steps are planned"
        plan, ints, arena = packed.plan, packed.ints.tensor, packed.arena
        is_usual = not packed.capture_heads and (hidden is None) == self._shard.range.is_first
        with torch.cuda.device_of(ints):  # type: ignore[no-untyped-call]
            if self._graphs is not None and is_usual and set(taps) <= set(self._taps):
                found = self._graphs.run([] if hidden is None else [hidden[0]], plan, ints, arena)
                if found is not None:
                    last, *outputs = (one.unsqueeze(0) for one in found)
                    return last, dict(zip(self._taps, outputs, strict=True))
            step = StepOnDevice.of(plan, ints, self._layers[0].heads, self._partial_bytes, self._overlaps)
            _move(step, arena, plan.n_moves)
            rows = self._bucket_rows(hidden, plan, ints)
            tapped = self._run_layers(rows, step, arena, taps, packed)
        return rows[: plan.n_rows][None], {local: output[: plan.n_rows][None] for local, output in tapped.items()}

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of ``[n, hidden]``, fp32 ``[n, vocab]``, soft-capped if the model does so."""
        assert self.answers is not None, "only the last stage has a head"
        return self.answers.logits(hidden)

    def head_part(self, normed: Tensor) -> Tensor:
        """Return normalized rows ``[n, hidden]`` times this rank's part of the head, fp32 ``[n, width]``."""
        assert self._head is not None, "only the last stage has a head"
        return self._head.part(normed)

    def _run_static(self, inputs: Sequence[Tensor], step: StepOnDevice, arena: KVArena) -> tuple[Tensor, ...]:
        """Return the outputs of the last layer and of taps; ``inputs`` are a bucket's rows, or none: it embeds them."""
        _move(step, arena, step.layout.n_rows)
        rows = inputs[0].clone() if inputs else self._embed(step.plan[step.layout.tokens])
        tapped = self._run_layers(rows, step, arena, self._taps)
        return rows, *(tapped[local] for local in self._taps)

    def _run_layers(
        self,
        rows: Tensor,
        step: StepOnDevice,
        arena: KVArena,
        taps: Collection[int],
        captures: PlannedStep | None = None,
    ) -> dict[int, Tensor]:
        """Run a bucket's ``[n_rows, hidden]`` through all layers in place; returns the outputs of ``taps``."""
        tapped: dict[int, Tensor] = {}
        for local, layer in enumerate(self._layers):
            capture = None if captures is None else self._make_capture(captures, local)
            run_layer(layer, rows, step, arena.layer(local), self._products, capture)
            if local in taps:
                tapped[local] = rows.clone()
        return tapped

    def _bucket_rows(self, hidden: Tensor | None, plan: StepPlan, ints: Tensor) -> Tensor:
        """Return the rows that the layers change, padded to the bucket, ``[n_rows of the bucket, hidden]``."""
        if hidden is None:
            return self._embed(ints[plan.layout.tokens])
        rows = hidden.new_zeros(plan.layout.n_rows, hidden.shape[2])
        rows[: plan.n_rows] = hidden[0]
        return rows

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self._embedding is not None, "only the first stage embeds"
        table = self._embedding.table
        rows = table.new_empty(len(tokens), table.shape[1])
        embed(tokens, table, rows, self._embedding.scale)
        return rows

    def _make_capture(self, packed: PlannedStep, local: int) -> Callable[[Tensor], None] | None:
        """Return a function that keeps the queries of a layer's captured heads; None: it has none."""
        index = packed.capture_index.get(local)
        if index is None:
            return None
        heads, n_rows = self._layers[local].heads, packed.plan.n_rows

        def capture(query: Tensor) -> None:
            by_head = query[:n_rows].view(n_rows, heads.n_heads, heads.head_dim).transpose(0, 1)
            chosen = by_head.index_select(0, index.tensor)
            packed.captured[local] = CapturedQuery(chosen, heads.n_heads, heads.scale, heads.window)

        return capture


def _move(step: StepOnDevice, arena: KVArena, n_moves: int) -> None:
    """Make the first moves of the plan; a graph always makes as many as a bucket has rows, so its launch is fixed.

    Accepted paths move towards their roots in ascending order, so no launch overwrites the source of a later one.
    """
    sources, targets = step.plan[step.layout.sources], step.plan[step.layout.targets]
    for first in range(0, n_moves, MOST_MOVES):
        some = slice(first, first + MOST_MOVES)
        move_rows(*arena.keys_and_values, sources[some], targets[some])
