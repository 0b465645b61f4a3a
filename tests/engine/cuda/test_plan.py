"""A plan, read as a device reads it, shows every row its text: each key once, ascending, and nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import BUCKETS, MAX_ROWS, bucket
from engine.cuda.plan.paths import paths_of
from engine.cuda.plan.plan import PlanShape, make_plan
from tests.engine.cuda.plans import SIZES, ancestors, as_drafted, random_works, seen_slots, wanted_slots

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
            wanted = [wanted_slots(work, row, window, block) for work in works for row in _rows(work)]
            assert [[slot for _, _, slot in keys] for keys in found] == wanted
            for keys, position in zip(found, one.ints[one.layout.positions], strict=False):
                assert [key for _, key, _ in keys] == list(range(position + 1 - len(keys), position + 1))
                assert all(its == key // split for its, key, _ in keys)


@given(SIZES, st.integers(1, 30), st.randoms())
def test_partials_of_rows_lie_side_by_side_and_rows_that_fill_the_bucket_have_none(
    sizes: list[tuple[int, int, bool]], window: int, rng: random.Random
) -> None:
    works = as_drafted(rng, random_works(rng, sizes, 4))
    plan = make_plan(works, PlanShape.of({None, window}, 1, 4, 777, 16))
    layout, ints = plan.layout, plan.ints
    assert layout.n_rows == 64 * -(-plan.n_rows // 64)
    assert (ints[layout.slots][plan.n_rows :] == 777).all()
    assert (ints[layout.positions][plan.n_rows :] == 0).all()
    written = [slot for work in works for row in _rows(work) for slot in _own_slot(work, row, 4)]
    assert ints[layout.slots][: plan.n_rows].tolist() == written
    for place in range(2):
        firsts = ints[layout.firsts(place)]
        assert (firsts[plan.n_rows :] == -1).all()
        counts = [len({split for split, _, _ in keys}) for keys in seen_slots(plan, place)]
        assert firsts[: plan.n_rows].tolist() == np.cumsum([0, *counts[:-1]]).tolist()
        assert sum(counts) <= plan.n_partials


@given(SIZES, st.randoms())
def test_rows_that_do_not_attend_have_slots_and_no_items(
    sizes: list[tuple[int, int, bool]], rng: random.Random
) -> None:
    works, shape = random_works(rng, sizes, 4), PlanShape.of({None, 5}, 1, 4, 777, 16)
    plan, usual = make_plan(works, shape, attends=False), make_plan(works, shape)
    assert (plan.n_items, plan.n_partials) == ((0, 0), 0)
    for array in (plan.layout.positions, plan.layout.slots):
        assert (plan.ints[array] == usual.ints[array]).all()


def _rows(work: PathWork) -> range:
    return range(work.n_run, work.n_rows)


def _own_slot(work: PathWork, row: int, block_size: int) -> list[int]:
    slot = work.n_cached + row
    return [work.blocks[slot // block_size] * block_size + slot % block_size]


@given(st.integers(0, 40), st.randoms())
def test_every_row_of_a_tree_is_the_own_row_of_one_path(n: int, rng: random.Random) -> None:
    work = random_works(rng, [(0, n + 1, True)], 1)[0]
    assert work.parents is not None
    paths = paths_of(work.parents)
    assert sorted(row for path in paths for row in path.own) == list(range(n + 1))
    for path in paths:
        assert path.rows == ancestors(work, path.rows[-1])


def test_splits_of_the_prefix_are_shared_by_the_rows_of_a_tree() -> None:
    work = PathWork(40, 9, [-1] * 8, range(13))
    plan = make_plan([work], PlanShape.of({None}, 1, 4, 99, 16))
    assert plan.n_items == (2 + 8,)  # two whole splits for all rows together, then one for every leaf
    chain = make_plan([PathWork(40, 9, None, range(13))], PlanShape.of({None}, 1, 4, 99, 16))
    assert chain.n_items == (4,)


def test_what_is_told_of_a_long_text_grows_with_its_blocks_and_splits_only() -> None:
    work = PathWork(100_000, 64, None, range(1564))
    plan = make_plan([work], PlanShape.of({None, 1024}, 4, 64, 1 << 20))
    assert len(plan.ints) < 1564 + 4 * (392 + 6) * 8 + 64 * 9
    assert plan.n_partials == 64 * 391


def test_rows_are_padded_to_buckets_and_bounded() -> None:
    assert [bucket(n) for n in (1, 64, 65, 200, 384, 385, 512, 513, MAX_ROWS)] == [
        *(64, 64, 128, 256, 384, 512, 512, 1024),
        MAX_ROWS,
    ]
    assert all(bucket(size) == size for size in BUCKETS)
    for n in (0, MAX_ROWS + 1):
        with pytest.raises(ValueError, match="rows"):
            bucket(n)
    with pytest.raises(ValueError, match="windows"):
        PlanShape.of({None, 1, 2, 3, 4}, 1, 4, 9)
