"""A plan, read as a device reads it, shows every row the keys of its text: each once, and in ascending order.

Compiled plans equal those of the slow planner.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import BUCKETS, MAX_ROWS, bucket
from engine.cuda.plan.plan import PlanShape, make_plan
from tests.engine.cuda.plan_oracle import slow_plan
from tests.engine.cuda.plans import SIZES, as_arrays, as_drafted, expected_slots, random_works, seen_slots

WINDOWS = st.sets(st.none() | st.integers(1, 30), min_size=1, max_size=3)


@given(SIZES, WINDOWS, st.sampled_from([1, 3, 4]), st.sampled_from([4, 16, 64]), st.integers(1, 9), st.randoms())
def test_every_row_sees_its_ancestors_and_its_prefix_once_and_ascending(
    sizes: list[tuple[int, int, bool]], windows: set[int | None], block: int, split: int, tile: int, rng: random.Random
) -> None:
    works = as_drafted(rng, random_works(rng, sizes, block))
    plan = make_plan(works, PlanShape.of(windows, 2, block, 9999, split))
    plan_of_small_tiles = make_plan(works, PlanShape(plan.layout.windows, 2, block, 9999, split, 2 * tile))
    for one in (plan, plan_of_small_tiles):
        for place, window in enumerate(one.layout.windows):
            found = seen_slots(one, place)
            expected = [expected_slots(work, row, window, block) for work in works for row in _rows(work)]
            assert [[slot for _, _, slot in keys] for keys in found] == expected
            for keys, position in zip(found, one.ints[one.layout.positions], strict=False):
                assert [key for _, key, _ in keys] == list(range(position + 1 - len(keys), position + 1))
                assert all(own == key // split for own, key, _ in keys)


def _rows(work: PathWork) -> range:
    return range(work.n_run, work.n_rows)


@given(
    SIZES,
    WINDOWS,
    st.sampled_from([1, 3, 4]),
    st.sampled_from([4, 16, 256]),
    st.integers(1, 9),
    st.integers(0, 600),
    st.booleans(),
    st.randoms(),
)
def test_compiled_plans_have_the_numbers_of_the_slow_ones(
    sizes: list[tuple[int, int, bool]],
    windows: set[int | None],
    block: int,
    split: int,
    tile: int,
    n_more: int,
    attends: bool,
    rng: random.Random,
) -> None:
    sizes[0] = (sizes[0][0] + n_more, *sizes[0][1:])
    works = as_drafted(rng, random_works(rng, sizes, block))
    if not (n_rows := sum(work.n_new for work in works)):
        return
    shape = replace(PlanShape.of(windows, 2, block, 9999, split, buckets=(8, 64)), tile=2 * tile)
    tokens, n_moves = [rng.randrange(1000) for _ in range(n_rows)], rng.randrange(20)
    moves = rng.sample(range(99), n_moves), rng.sample(range(99), n_moves)
    expected = slow_plan(works, shape, tokens, moves, attends)
    for some in (works, as_arrays(works)):
        plan = make_plan(some, shape, tokens, moves, attends)
        assert plan.ints.tolist() == expected.ints.tolist()
        assert replace(plan, ints=expected.ints) == expected


@pytest.mark.parametrize(
    "work",
    [
        PathWork(4, 3, (-1, 1), range(9)),  # a node is its own parent
        PathWork(4, 3, (-1, -2), range(9)),
        PathWork(4, 3, (-1,), range(9)),
        PathWork(4, 3, (-1, 0, 1), range(9)),
        PathWork(4, 5, None, range(2)),  # nine slots in two blocks of four
        PathWork(4, 3, None, range(9), n_run=4),
        PathWork(-1, 3, None, range(9)),
    ],
)
def test_a_work_that_contradicts_itself_is_refused(work: PathWork) -> None:
    with pytest.raises(ValueError, match=r"work 1 has .* rows after"):
        make_plan([PathWork(0, 9, None, range(3)), work], PlanShape.of({None}, 1, 4, 9))


def test_a_plan_that_int32_cannot_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    works, shape = [PathWork(30, 2, (-1,), range(8))], PlanShape.of({None}, 1, 4, 9, split=4)
    n_ints = len(make_plan(works, shape).ints)
    monkeypatch.setattr("engine.cuda.plan.plan.MAX_INTS", n_ints - 1)
    with pytest.raises(ValueError, match=f"take {n_ints} integers; a plan holds at most {n_ints - 1}"):
        make_plan(works, shape)


def test_rows_are_padded_to_buckets_and_bounded() -> None:
    rows = {1: 16, 17: 32, 64: 64, 65: 128, 200: 256, 384: 384, 385: 512, 512: 512, 513: 1024, MAX_ROWS: MAX_ROWS}
    assert {n: bucket(n) for n in rows} == rows
    assert all(bucket(size) == size for size in BUCKETS)
    for n in (0, MAX_ROWS + 1):
        with pytest.raises(ValueError, match="rows"):
            bucket(n)
    with pytest.raises(ValueError, match="windows"):
        PlanShape.of({None, 1, 2, 3, 4}, 1, 4, 9)
