"""Attention by paths equals fp64's, and a row has the same bits whatever other rows the step has."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.attention.oracle import oracle_attention
from engine.cuda.kernels.attention import Partials, attend
from engine.cuda.kernels.combine import combine
from engine.cuda.operands import Heads
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.plan import PlanShape, StepPlan, make_plan
from tests.engine.cuda.plan_oracle import slots_of
from tests.engine.cuda.plans import ancestors, expected_slots, random_works, tree_of

BLOCK, SPLIT = 4, 32
BUCKETS = (1, 8, 24, 48)


@dataclass
class AttentionStep:
    """A step's works, with queries, keys and values of all rows."""

    works: Sequence[PathWork]
    heads: Heads
    q: Tensor  # [n_rows, n_heads, head_dim]
    keys: Tensor  # [n_slots, n_kv_heads, head_dim]
    values: Tensor

    @property
    def plan(self) -> StepPlan:
        """The plan of the works, for the window of the heads and others."""
        windows = {self.heads.window, None, 7}
        groups = self.heads.n_heads // self.heads.n_kv_heads
        return make_plan(self.works, PlanShape.of(windows, groups, BLOCK, len(self.keys) - 1, SPLIT, buckets=BUCKETS))

    def run(self, programs: int = 0, n_pieces: int = 1) -> Tensor:
        """Attention ``[n_rows, n_heads, head_dim]``; memory that must not be read is NaN."""
        plan, heads = self.plan, self.heads
        n_items, width = plan.n_items[plan.layout.window_number(heads.window)], heads.n_heads * heads.head_dim
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


def case_of(works: Sequence[PathWork], heads: Heads, seed: int) -> AttentionStep:
    """A case with random numbers for the rows of works, and NaN in slots that no row sees."""
    draw = torch.Generator().manual_seed(seed)
    n_rows, n_blocks = sum(work.n_rows for work in works), sum(len(work.blocks) for work in works)
    kv = (n_blocks * BLOCK + 1, heads.n_kv_heads, heads.head_dim)
    keys, values = torch.full(kv, float("nan")), torch.full(kv, float("nan"))
    used = [
        work.blocks[position // BLOCK] * BLOCK + position % BLOCK
        for work in works
        for position in range(work.n_cached + work.n_rows)
    ]
    keys[used], values[used] = torch.randn(2, len(used), *kv[1:], generator=draw)
    return AttentionStep(
        works, heads, torch.randn(n_rows, heads.n_heads, heads.head_dim, generator=draw) * 2, keys, values
    )


def expected(case: AttentionStep) -> Tensor:
    """The oracle's attention of every row."""
    heads, outs = case.heads, []
    for work, query in zip(case.works, torch.split(case.q, [work.n_rows for work in case.works]), strict=True):
        slots, tree = slots_of(work, 0, work.n_cached + work.n_rows, BLOCK), tree_of(work)
        rows, own = (query, case.keys[slots], case.values[slots]), ([0, *tree.depths], tree.ancestor_mask())
        outs.append(oracle_attention(*rows, *own, heads.scale, heads.window, heads.softcap))
    return torch.cat(outs)


def alone(case: AttentionStep, index: int, row: int, chunk: int = 1) -> AttentionStep:
    """The last ``chunk`` rows of the text of a row, as in plain decoding or a prompt, in contiguous blocks."""
    work = case.works[index]
    slots = expected_slots(work, row, None, BLOCK)
    first_row = sum(before.n_rows for before in case.works[:index])
    n_blocks = -(-len(slots) // BLOCK)
    chain = PathWork(len(slots) - chunk, chunk, None, range(1, n_blocks + 1))
    keys, values = (torch.full((n_blocks * BLOCK + 9, *case.keys.shape[1:]), float("nan")) for _ in range(2))
    keys[BLOCK : BLOCK + len(slots)], values[BLOCK : BLOCK + len(slots)] = case.keys[slots], case.values[slots]
    own = ancestors(work, row)[-chunk:]
    return AttentionStep([chain], case.heads, case.q[[first_row + seen for seen in own]], keys, values)


KINDS = {
    "grouped": Heads(4, 2, 16, 0.25),
    "window": Heads(4, 2, 16, 0.25, window=24),
    "seven to one, capped": Heads(7, 1, 8, 0.3, softcap=2.0),
    "head of 24, window, capped": Heads(2, 2, 24, 0.2, window=45, softcap=5.0),
}
# (committed tokens, rows, tree): before, at and after borders of splits and tiles
STEP = [(0, 5, True), (SPLIT - 3, 17, True), (2 * SPLIT, 1, False), (SPLIT + 11, 13, False)]


def step(kind: str) -> AttentionStep:
    return case_of(random_works(random.Random(3), STEP, BLOCK), KINDS[kind], 5)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_trees_and_chains_is_what_fp64_says_path_by_path(kind: str) -> None:
    case = step(kind)
    assert torch.allclose(case.run().double(), expected(case), atol=1e-5)


def tiered(kind: str) -> object:
    return pytest.param(kind, marks=pytest.mark.cluster if kind == "window" else pytest.mark.matrix)


@pytest.mark.parametrize("kind", [*map(tiered, KINDS)])
def test_a_row_of_a_tree_has_the_bits_of_plain_decoding(kind: str) -> None:
    case = step(kind)
    batch = case.run()
    firsts = [0, 5, 22, 23]
    for work, row in ((0, 4), (1, 0), (1, 9), (1, 16), (2, 0), (3, 12)):
        one = alone(case, work, row)
        assert torch.equal(one.run()[0], batch[firsts[work] + row]), (work, row)


@pytest.mark.matrix
def test_a_prompt_has_the_same_bits_in_chunks_programs_and_pieces_of_any_size() -> None:
    case = case_of(random_works(random.Random(3), [(0, 41, False)], BLOCK), KINDS["grouped"], 5)
    whole = case.run()
    for size in (5, 32):
        for end in (size, 3 * size if size == 5 else 41):
            assert torch.equal(alone(case, 0, end - 1, size).run(), whole[end - size : end]), (size, end)
    case = step("window")
    assert torch.equal(case.run(programs=3), case.run(programs=40, n_pieces=2))


@pytest.mark.cluster
def test_values_that_a_row_does_not_see_change_no_bit_even_if_they_are_huge() -> None:
    """Rows of a tile share keys: a row multiplies the values after its end by 0. NaN cannot stand there."""
    case = case_of(random_works(random.Random(3), [(SPLIT - 3, 17, True)], BLOCK), KINDS["grouped"], 5)
    values, row = case.values, 6
    unseen = torch.ones(len(values), dtype=torch.bool)
    unseen[expected_slots(case.works[0], row, None, BLOCK)] = False
    before = case.run()[row]
    for value in (0.0, 3e38, -3e38):
        case.values = torch.where(unseen[:, None, None], torch.full_like(values, value), values)
        assert torch.equal(case.run()[row], before), value


@pytest.mark.matrix
def test_large_scores_stay_finite() -> None:
    case = step("grouped")
    case.q *= 1e4
    assert torch.allclose(case.run().double(), expected(case), atol=1e-3)
