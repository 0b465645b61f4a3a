"""Runs the final norm, the head, draws and best ids after the last layer. It only launches: nothing waits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.truncation import Truncation
from engine.cuda.plan.answer import AnswerKind
from engine.cuda.plan.answer_layout import AnswerLayout
from engine.cuda.products import Products
from engine.cuda.weights import pack_head, pack_norm
from engine.model.exchange import ShardedHead
from engine.model.shard import ModelShard


@dataclass(frozen=True, slots=True)
class RowsOnDevice:
    """Rows that are answered together, in the fixed memory of a graph or in new memory."""

    hidden: Tensor  # [n_rows of the bucket, hidden]
    plan: Tensor  # int32, as ``layout`` lays it out
    layout: AnswerLayout
    mask: Tensor | None  # bits of allowed ids, int32 [n_rows of the bucket, ceil(vocab / 32)]
    logits: Tensor  # fp32 [n_rows of the bucket, vocab], written
    table: Tensor  # int32 [n_rows of the bucket, ``kind.columns``], written: an ``AnswerTable``


class Head:
    """Final norm and head of a stage's shard; ranks that share the head multiply by its parts from now on."""

    def __init__(self, shard: ModelShard, products: Products) -> None:
        module = shard.head_module
        self._products = products
        self._norm, self._head = pack_norm(shard.final_norm, shard.spec), pack_head(module)
        self._cap = shard.spec.logit_softcap
        self._sharded = module if isinstance(module, ShardedHead) else None
        if self._sharded is not None:
            self._sharded.multiply = self.part

    @property
    def is_sharded(self) -> bool:
        """Whether logits need the other ranks; no graph may hold such logits, since these ranks await a command."""
        return self._sharded is not None

    @property
    def vocab(self) -> int:
        """Width of the logits."""
        return len(self._head.weight) if self._sharded is None else self._sharded.n_out

    def part(self, normed: Tensor) -> Tensor:
        """Return normalized rows ``[n, hidden]`` times this rank's outputs, fp32 ``[n, width]``."""
        out = torch.empty(len(normed), len(self._head.weight), dtype=torch.float32, device=normed.device)
        with torch.cuda.device_of(normed):  # type: ignore[no-untyped-call]
            return self._products.multiply(normed, self._head, out)

    def logits(self, hidden: Tensor, out: Tensor) -> None:
        """Write the logits of ``[n, hidden]``, soft-capped if the model does so, to fp32 ``out`` ``[n, vocab]``."""
        normed = torch.empty_like(hidden)
        rms_norm(hidden, self._norm, normed)
        if self._sharded is None:
            self._products.multiply(normed, self._head, out)
        else:
            out.copy_(self._sharded(normed))
        if self._cap is not None:
            out.div_(self._cap).tanh_().mul_(self._cap)

    def answer(self, rows: RowsOnDevice, kind: AnswerKind) -> None:
        """Write the logits and the answer table of the rows."""
        self.logits(rows.hidden, rows.logits)
        self.read_logits(rows, kind)

    def read_logits(self, rows: RowsOnDevice, kind: AnswerKind) -> None:
        """Write the answer table of rows that have their logits."""
        plan, layout, table, width = rows.plan, rows.layout, rows.table, kind.width
        if kind.draws:
            truncation = None
            if kind.truncates:
                top_p, log_min_p = (plan[one].view(torch.float64) for one in (layout.top_p, layout.log_min_p))
                truncation = Truncation(plan[layout.top_k], top_p, log_min_p)
            temperatures, keys = plan[layout.temperatures].view(torch.float32), plan[layout.keys].view(2, -1)
            draw(rows.logits, temperatures, keys, table[:, 0], mask=rows.mask, truncation=truncation)
        if width:
            numbers = table.view(torch.float32)
            ids, logprobs = table[:, 2 : 2 + width], numbers[:, 2 + width :]
            best_ids(rows.logits, width, plan[layout.asked], table[:, 0], ids, logprobs, numbers[:, 1])
