"""Splits of a model over stages: the best of all that fit, and a clear error where none does."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.model.partition import GIB, ModelParts, check_ranges, partition
from engine.model.ranges import LayerRange

whole = st.integers(0, 9)


@st.composite
def models(draw: st.DrawFn) -> tuple[ModelParts, ModelParts, int]:
    """Costs, bytes and a number of stages; whole numbers, so that sums compare exactly."""
    n_layers = draw(st.integers(1, 7))
    layers = st.lists(st.integers(1, 9), min_size=n_layers, max_size=n_layers).map(tuple)
    head = draw(whole)
    costs = ModelParts(draw(layers), draw(whole), draw(whole))
    return (
        costs,
        ModelParts(draw(layers), draw(whole), head, draw(st.integers(0, head))),
        draw(st.integers(1, n_layers)),
    )


def all_splits(n_layers: int, n_stages: int) -> list[tuple[int, ...]]:
    return [(0, *cuts, n_layers) for cuts in combinations(range(1, n_layers), n_stages - 1)]


def worth(parts: ModelParts, bounds: tuple[int, ...]) -> list[float]:
    return [parts.of(first, last) for first, last in pairwise(bounds)]


def bounds_of(ranges: list[LayerRange]) -> tuple[int, ...]:
    return (0, *(one.last for one in ranges))


@given(models(), st.data())
def test_the_split_is_the_fastest_and_most_even_of_those_that_fit_into_memory(
    model: tuple[ModelParts, ModelParts, int], data: st.DataObject
) -> None:
    """Compared with every possible split."""
    costs, memory, n_stages = model
    room = data.draw(st.integers(1, 40) | st.just(1000))
    limits = data.draw(st.lists(st.integers(room // 2, room), min_size=n_stages, max_size=n_stages))

    def fits(bounds: tuple[int, ...]) -> bool:
        return all(taken <= limit for taken, limit in zip(worth(memory, bounds), limits, strict=True))

    fitting = [worth(costs, bounds) for bounds in all_splits(len(costs.layers), n_stages) if fits(bounds)]
    if not fitting:
        with pytest.raises(ConfigError, match="stage_memory_gib"):
            partition(costs, memory, n_stages, limits)
        return
    bounds = bounds_of(partition(costs, memory, n_stages, limits))
    assert fits(bounds)
    chosen = worth(costs, bounds)
    assert (max(chosen), sum(x * x for x in chosen)) == min((max(one), sum(x * x for x in one)) for one in fitting)


def test_an_error_says_which_stage_exceeds_which_limit_by_how_much() -> None:
    same = ModelParts((GIB,) * 8, GIB, GIB)
    message = r"stage_memory_gib is 3 for stage 0, but no split fits.*4,4, it takes 5 GiB.*2 GiB are missing"
    with pytest.raises(ConfigError, match=message):
        partition(same, same, 2, (3 * GIB, 4 * GIB))
    with pytest.raises(ConfigError, match=r"stage_memory_gib is 5 for stage 1, but with split 3,5, it takes 6 GiB"):
        check_ranges([LayerRange(0, 3, 8), LayerRange(3, 8, 8)], same, (5 * GIB, 5 * GIB))
    check_ranges([LayerRange(0, 4, 8), LayerRange(4, 8, 8)], same, (5 * GIB, 5 * GIB))
    for n_stages in (0, 9):
        with pytest.raises(ConfigError, match=f"stages is {n_stages}; it must be 1 to 8"):
            partition(same, same, n_stages)
