"""A plan, read as a device reads it, shows every row the keys of its text: each once, and in ascending order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import BUCKETS, MAX_ROWS, bucket
from engine.cuda.plan.plan import PlanShape, make_plan
from tests.engine.cuda.plans import SIZES, as_drafted, expected_slots, random_works, seen_slots

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
