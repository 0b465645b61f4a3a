"""Answers of a stage's rows: head, draws and best ids, as one recorded graph for each bucket of rows and kind.

It is a graph of its own, after that of the layers: how many rows go through the head has nothing to do with how many
a step has, and what grammars allow is found on the host while the device is busy with the layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from engine.cuda.graphs import GraphRecorder
from engine.cuda.head import Head, RowsOnDevice
from engine.cuda.kernels.rows import embed
from engine.cuda.plan.answer import MOST_BEST, WIDTHS, AnswerKind, AnswerPlan
from engine.cuda.plan.answer_layout import AnswerLayout, arrange_answer
from engine.model.shard import ModelShard

LOGIT_BYTES = 256 << 20  # of logits that graphs have room for: 512 rows of 128,256 ids


@dataclass(slots=True)
class _Buffers:
    """Memory that graphs know, for the most rows that are recorded."""

    hidden: Tensor  # [most, hidden]
    plan: Tensor  # int32, as much as the layout of ``most`` takes
    mask: Tensor  # int32 [most, ceil(vocab / 32)]
    logits: Tensor  # fp32 [most, vocab]
    table: Tensor  # int32 [most * most columns]


class LogitsReader:
    """Answers rows of the last stage's hidden states.

    Args:
        shard: of the stage.
        head: of the shard; one that ranks share runs before the graphs.
        buckets: of rows, ascending.
        recorder: of graphs; None: everything runs launch by launch.
    """

    def __init__(self, shard: ModelShard, head: Head, buckets: tuple[int, ...], recorder: GraphRecorder | None) -> None:
        self.buckets, self._recorder = buckets, recorder
        self._head, self.vocab = head, head.vocab
        self._width, self._dtype, self.device = shard.spec.hidden_size, shard.dtype, shard.device
        fit = [size for size in buckets if 4 * size * self.vocab <= LOGIT_BYTES]
        self._most = max(fit, default=0)
        self._graphs: dict[tuple[int, AnswerKind, bool], torch.cuda.CUDAGraph] = {}
        self._buffers: _Buffers | None = None  # with the first graph

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, hidden]`` -> fp32 ``[n, vocab]``."""
        out = self._zeros(torch.float32, len(hidden), self.vocab)
        with torch.cuda.device_of(hidden):  # type: ignore[no-untyped-call]
            self._head.logits(hidden, out)
        return out

    def answer(self, hidden: Tensor, plan: AnswerPlan, ints: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The answer table and the logits of the plan's rows, overwritten by the next call.

        Args:
            hidden: of the step, ``[n, hidden]``.
            plan: of the rows.
            ints: the plan's, on the device.
            mask: bits of allowed ids, int32 ``[n_rows of the bucket, ceil(vocab / 32)]``; None: all are.

        Returns:
            int32 ``[plan.n_rows, plan.kind.columns]``, and fp32 ``[plan.n_rows, vocab]``.
        """
        layout, kind, is_masked = plan.layout, plan.kind, mask is not None
        with torch.cuda.device_of(hidden):  # type: ignore[no-untyped-call]
            if self._recorder is None or layout.n_rows > self._most:
                rows = self._fresh(plan, ints, mask)
                embed(ints[layout.rows], hidden, rows.hidden)
                self._head.answer(rows, kind)
            else:
                rows = self._fixed(layout, kind, is_masked)
                embed(ints[layout.rows], hidden, rows.hidden)
                rows.plan.copy_(ints)
                if mask is not None and rows.mask is not None:
                    rows.mask.copy_(mask)
                graph = self._graph(self._recorder, rows, kind)
                if self._head.is_sharded:
                    self._head.logits(rows.hidden, rows.logits)
                graph.replay()
        return rows.table[: plan.n_rows], rows.logits[: plan.n_rows]

    def warm_up(self) -> Iterator[str]:
        """Compile all kernels and record usual answers; names what was done, one by one.

        Every kind of answer is recorded for the fewest rows, which most steps have, and draws for all buckets; others
        are recorded when a step first needs them, of kernels that are there.
        """
        if self._recorder is None:
            return
        for size in [bucket for bucket in self.buckets if bucket <= self._most]:
            rows = self._fixed(arrange_answer(size), AnswerKind(True, False, 0), False)
            embed(rows.plan[rows.layout.rows], torch.zeros_like(rows.hidden), rows.hidden)
            for kind, is_masked in self._usual(size):
                self._graph(self._recorder, self._fixed(arrange_answer(size), kind, is_masked), kind)
            yield f"answers to {size} rows"

    def forget_graphs(self) -> None:
        self._graphs.clear()

    def _usual(self, n_rows: int) -> Iterator[tuple[AnswerKind, bool]]:
        """Kinds of answers to record before the first step, and whether grammars mask them."""
        is_fewest = n_rows == self.buckets[0]
        widths, masks = (self._widths, (False, True)) if is_fewest else ([0], (False,))
        for width, truncates, is_masked in product(widths, (False, True), masks):
            yield AnswerKind(True, truncates, width), is_masked
        for width in widths[1:]:
            yield AnswerKind(False, False, width), False

    @property
    def _widths(self) -> list[int]:
        return sorted({min(width, self.vocab) for width in WIDTHS})

    def _fresh(self, plan: AnswerPlan, ints: Tensor, mask: Tensor | None) -> RowsOnDevice:
        n_rows = plan.layout.n_rows
        hidden, logits = self._zeros(self._dtype, n_rows, self._width), self._zeros(torch.float32, n_rows, self.vocab)
        table = self._zeros(torch.int32, n_rows, plan.kind.columns)
        return RowsOnDevice(hidden, ints, plan.layout, mask, logits, table)

    def _fixed(self, layout: AnswerLayout, kind: AnswerKind, is_masked: bool) -> RowsOnDevice:
        """The rows' share of the memory that graphs know."""
        if self._buffers is None:
            most, words = self._most, -(-self.vocab // 32)
            self._buffers = _Buffers(
                torch.zeros(most, self._width, dtype=self._dtype, device=self.device),
                torch.zeros(arrange_answer(most).size, dtype=torch.int32, device=self.device),
                torch.full((most, words), -1, dtype=torch.int32, device=self.device),
                torch.zeros(most, self.vocab, device=self.device),  # recording reads them
                self._zeros(torch.int32, most * AnswerKind(True, True, min(MOST_BEST, self.vocab)).columns),
            )
        n_rows, buffers = layout.n_rows, self._buffers
        table = buffers.table[: n_rows * kind.columns].view(n_rows, kind.columns)
        mask = buffers.mask[:n_rows] if is_masked else None
        plan, logits = buffers.plan[: layout.size], buffers.logits[:n_rows]
        return RowsOnDevice(buffers.hidden[:n_rows], plan, layout, mask, logits, table)

    def _graph(self, recorder: GraphRecorder, rows: RowsOnDevice, kind: AnswerKind) -> torch.cuda.CUDAGraph:
        key = rows.layout.n_rows, kind, rows.mask is not None
        if key not in self._graphs:
            run = self._head.read_logits if self._head.is_sharded else self._head.answer
            self._graphs[key], _ = recorder.record(lambda: run(rows, kind))
        return self._graphs[key]

    def _zeros(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)  # a warm-up computes with it
