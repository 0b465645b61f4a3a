"""Attention of a step by the kernels, over an arena in which only what the step may read has values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cuda.kernels.attention import Heads, Partials, attend
from engine.cuda.kernels.combine import combine
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.plan import Plan, PlanShape, make_plan
from tests.engine.cuda.plans import ancestors, wanted_slots

BLOCK, SPLIT = 4, 32
BUCKETS = (1, 8, 24, 48)


@dataclass
class Case:
    """A step's works, and queries, keys and values of all their rows."""

    works: Sequence[PathWork]
    heads: Heads
    q: Tensor  # [n_rows, n_heads, head_dim]
    keys: Tensor  # [n_slots, n_kv_heads, head_dim]
    values: Tensor

    @property
    def plan(self) -> Plan:
        """With the window of the heads among others, in blocks of ``BLOCK``."""
        windows = {self.heads.window, None, 7}
        groups = self.heads.n_heads // self.heads.n_kv_heads
        return make_plan(self.works, PlanShape.of(windows, groups, BLOCK, len(self.keys) - 1, SPLIT, buckets=BUCKETS))

    def run(self, programs: int = 0, n_pieces: int = 1) -> Tensor:
        """``[n_rows, n_heads, head_dim]``; everything that must not matter is NaN before."""
        plan, heads = self.plan, self.heads
        n_items, width = plan.n_items[plan.layout.place(heads.window)], heads.n_heads * heads.head_dim
        q = torch.full((plan.layout.n_rows, width), float("nan"))
        q[: plan.n_rows] = self.q.reshape(plan.n_rows, width)
        partials = Partials.empty(plan.n_partials, heads.n_heads // n_pieces, heads.head_dim, q.device)
        out, ints = torch.full_like(q, float("nan")), torch.from_numpy(plan.ints)
        size = heads.n_kv_heads // n_pieces
        for first in range(0, heads.n_kv_heads, size):
            for part in (partials.sums, partials.largest, partials.weights):
                part.fill_(float("nan"))
            piece = range(first, first + size)
            attend(q, self.keys, self.values, ints, plan.layout, heads, piece, partials, programs or n_items)
            combine(partials, ints, plan.layout, heads, piece, out)
        assert (out[plan.n_rows :] == 0).all()
        return out[: plan.n_rows].reshape(self.q.shape)


def case_of(works: Sequence[PathWork], heads: Heads, seed: int) -> Case:
    """Random numbers for the rows of works, NaN in slots that no row sees."""
    draw = torch.Generator().manual_seed(seed)
    n_rows, n_blocks = sum(work.n_rows for work in works), sum(len(work.blocks) for work in works)
    kv = (n_blocks * BLOCK + 1, heads.n_kv_heads, heads.head_dim)
    keys, values = torch.full(kv, float("nan")), torch.full(kv, float("nan"))
    used = [s for work in works for s in work.slots(0, work.n_cached + work.n_rows, BLOCK).tolist()]
    keys[used], values[used] = torch.randn(2, len(used), *kv[1:], generator=draw)
    return Case(works, heads, torch.randn(n_rows, heads.n_heads, heads.head_dim, generator=draw) * 2, keys, values)


def oracle(case: Case) -> Tensor:
    """fp64, row by row, over the keys of the row's text."""
    heads, outs = case.heads, []
    rows = [(work, row) for work in case.works for row in range(work.n_rows)]
    for (work, row), q in zip(rows, case.q.double(), strict=True):
        slots = wanted_slots(work, row, heads.window, BLOCK)
        groups = heads.n_heads // heads.n_kv_heads
        keys, values = (x[slots].double().repeat_interleave(groups, 1) for x in (case.keys, case.values))
        scores = torch.einsum("hd,nhd->hn", q, keys) * heads.scale
        if heads.softcap is not None:
            scores = heads.softcap * torch.tanh(scores / heads.softcap)
        outs.append(torch.einsum("hn,nhd->hd", torch.softmax(scores, -1), values))
    return torch.stack(outs)


def alone(case: Case, index: int, row: int, chunk: int = 1) -> Case:
    """The last ``chunk`` rows of the text of a row of a work, as plain decoding or a prompt has them, in blocks of
    another arena that follow each other."""
    work = case.works[index]
    slots = wanted_slots(work, row, None, BLOCK)
    first_row = sum(before.n_rows for before in case.works[:index])
    n_blocks = -(-len(slots) // BLOCK)
    chain = PathWork(len(slots) - chunk, chunk, None, range(1, n_blocks + 1))
    keys, values = (torch.full((n_blocks * BLOCK + 9, *case.keys.shape[1:]), float("nan")) for _ in range(2))
    keys[BLOCK : BLOCK + len(slots)], values[BLOCK : BLOCK + len(slots)] = case.keys[slots], case.values[slots]
    own = ancestors(work, row)[-chunk:]
    return Case([chain], case.heads, case.q[[first_row + its for its in own]], keys, values)
