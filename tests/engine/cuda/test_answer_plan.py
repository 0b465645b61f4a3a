"""An answer's plan says of every row what the definition of a walk says: whether and how a token is drawn there."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.plan.answer import AnswerKind, AnswerPlan, make_answer
from engine.cuda.plan.answer_layout import DRAWN, NO_DRAWS, NOTHING, READ
from engine.sampling.keys import GUMBEL_DOMAIN, position_key
from engine.sampling.params import SamplingParams
from engine.tree import ROOT, TokenTree
from engine.upload import Upload
from engine.verify.kernel_draws import KernelDraws
from engine.verify.walk import Walk, WalkItem
from tests.engine.cuda.plans import random_parents

CPU = torch.device("cpu")
BUCKETS = (4, 16, 64)
WIDTH = 8
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    top_k=st.sampled_from([0, 0, 40]),
    top_p=st.sampled_from([1.0, 1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    seed=st.integers(0, (1 << 64) - 1),
    choice=st.integers(0, 3),
    logprobs=st.none() | st.integers(0, 5),
)
SHAPES = st.tuples(st.integers(0, 12), st.booleans(), st.none() | st.integers(0, 5), st.integers(0, 1 << 20))


class PlannedRow(NamedTuple):
    """What a plan says of a row of logits."""

    row: int
    temperature: float = -1.0
    key: int = 0
    limits: tuple[float, float, float] = (0, 1.0, -math.inf)  # top-k, top-p, log min-p
    asked: int = NOTHING


def planned_rows(plan: AnswerPlan) -> list[PlannedRow]:
    """What the device reads, row by row of the bucket."""
    layout, ints = plan.layout, plan.ints
    keys = ints[layout.keys].view(np.uint32).reshape(2, -1).astype(object)
    limits = ints[layout.top_k], ints[layout.top_p].view(np.float64), ints[layout.log_min_p].view(np.float64)
    columns = (
        ints[layout.rows].tolist(),
        ints[layout.temperatures].view(np.float32).tolist(),
        (keys[0] + (keys[1] << 32)).tolist(),
        list(zip(*(numbers.tolist() for numbers in limits), strict=True)),
        ints[layout.asked].tolist(),
    )
    return [PlannedRow(*line) for line in zip(*columns, strict=True)]


def rows_of(item: WalkItem, asked: Sequence[int]) -> Iterator[PlannedRow]:
    """The rows of a tree by definition."""
    params, tree = item.params, item.tree
    for node in range(ROOT, len(tree)):
        row, depth = item.first_row + 1 + node, 0 if node == ROOT else tree.depths[node]
        if (node != ROOT and tree.probe[node]) or (item.max_new is not None and depth >= item.max_new):
            yield PlannedRow(row, asked=asked[row])
            continue
        is_told = asked[row] == READ or params.logprobs is not None
        rule = PlannedRow(row, float(np.float32(params.temperature)), asked=DRAWN if is_told else NOTHING)
        if not params.is_greedy:
            limits = params.top_k, params.top_p, math.log(params.min_p) if params.min_p else -math.inf
            rule = rule._replace(key=position_key(item.key(depth), GUMBEL_DOMAIN), limits=limits)
        yield rule


@given(st.lists(st.tuples(SHAPES, PARAMS), min_size=1, max_size=4), st.integers(1, 60), st.randoms())
def test_plans_say_of_every_row_what_the_definition_says(
    drawn: list[tuple[tuple[int, bool, int | None, int], SamplingParams]], size: int, rng: random.Random
) -> None:
    items: list[WalkItem] = []
    n = 0
    for (n_nodes, has_probes, max_new, n_context), params in drawn:
        parents, n_walked = random_parents(rng, n_nodes), rng.randrange(n_nodes + 1) if has_probes else n_nodes
        probe = [node >= n_walked for node in range(n_nodes)]
        items.append(WalkItem(TokenTree([7] * n_nodes, parents, probe=probe), n, params, None, n_context, max_new))
        n += 1 + n_nodes
    asked = [rng.choice((READ, NOTHING)) for _ in range(n)]
    expected = [row for item in items for row in rows_of(item, asked)]
    draws = KernelDraws([(item, Walk()) for item in items], 0, Upload(CPU)).planned
    for first in range(0, n, size):
        rows, some = range(n)[first : first + size], expected[first : first + size]
        plan = make_answer(rows, first, draws, np.array(asked, np.int32)[first : first + size], WIDTH, BUCKETS)
        padding = [PlannedRow(0)] * (plan.layout.n_rows - len(rows))
        assert planned_rows(plan) == some + padding
        truncates = any(row.limits != PlannedRow(0).limits for row in some)
        asks = any(row.asked != NOTHING for row in some)
        assert plan.kind == AnswerKind(any(row.temperature >= 0 for row in some), truncates, WIDTH if asks else 0)


def test_rows_of_prompts_are_asked_for_their_tokens() -> None:
    plan = make_answer([3, 4, 7], 20, NO_DRAWS, np.array([11, READ, NOTHING], np.int32), WIDTH, BUCKETS)
    assert planned_rows(plan) == [PlannedRow(3, asked=11), PlannedRow(4, asked=READ), PlannedRow(7), PlannedRow(0)]
    assert plan.kind == AnswerKind(False, False, WIDTH)
