"""Splits of a model over stages: as good as trying every one of them, within memory, and clear where none fits."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.model.partition import GIB, ModelParts, check_ranges, partition
from engine.model.ranges import LayerRange, split_layers

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


@given(models())
def test_no_other_split_has_a_faster_slowest_stage_or_is_as_fast_and_more_even(
    model: tuple[ModelParts, ModelParts, int],
) -> None:
    costs, memory, n_stages = model
    chosen = worth(costs, bounds_of(partition(costs, memory, n_stages)))
    others = [worth(costs, bounds) for bounds in all_splits(len(costs.layers), n_stages)]
    best = min((max(one), sum(x * x for x in one)) for one in others)
    assert (max(chosen), sum(x * x for x in chosen)) == best


@given(models(), st.data())
def test_memory_rules_splits_out_and_only_those(model: tuple[ModelParts, ModelParts, int], data: st.DataObject) -> None:
    costs, memory, n_stages = model
    limits = data.draw(st.lists(st.integers(1, 40), min_size=n_stages, max_size=n_stages))
    fitting = [
        worth(costs, bounds)
        for bounds in all_splits(len(costs.layers), n_stages)
        if all(taken <= limit for taken, limit in zip(worth(memory, bounds), limits, strict=True))
    ]
    if not fitting:
        with pytest.raises(ConfigError, match="stage_memory_gib"):
            partition(costs, memory, n_stages, limits)
        return
    bounds = bounds_of(partition(costs, memory, n_stages, limits))
    assert all(taken <= limit for taken, limit in zip(worth(memory, bounds), limits, strict=True))
    chosen = worth(costs, bounds)
    assert (max(chosen), sum(x * x for x in chosen)) == min((max(one), sum(x * x for x in one)) for one in fitting)


@given(st.integers(1, 40), st.integers(1, 8))
def test_layers_that_all_cost_the_same_are_split_evenly_with_larger_first_stages(n_layers: int, n_stages: int) -> None:
    assume(n_stages <= n_layers)
    same = ModelParts((3,) * n_layers, 0, 0)
    assert partition(same, same, n_stages) == split_layers(n_layers, n_stages)


def test_a_heavy_head_takes_layers_from_the_last_stage() -> None:
    costs = ModelParts((1,) * 8, 0, 2)
    assert [len(one) for one in partition(costs, costs, 2)] == [5, 3]


def test_stages_may_have_different_memory() -> None:
    costs, memory = ModelParts((1,) * 8, 0, 0), ModelParts((10,) * 8, 5, 5)
    assert [len(one) for one in partition(costs, memory, 2, (25, 100))] == [2, 6]
    assert [len(one) for one in partition(costs, memory, 2, (100, 25))] == [6, 2]


def test_the_error_says_which_stage_lacks_how_much_of_which_limit() -> None:
    same = ModelParts((GIB,) * 8, GIB, GIB)
    told = r"stage_memory_gib is 3 for stage 0, but no split fits.*4,4, it takes 5 GiB.*2 GiB are missing"
    with pytest.raises(ConfigError, match=told):
        partition(same, same, 2, (3 * GIB, 4 * GIB))
    with pytest.raises(ConfigError, match=r"stage_memory_gib is 5 for stage 1, but with split 3,5, it takes 6 GiB"):
        check_ranges([LayerRange(0, 3, 8), LayerRange(3, 8, 8)], same, (5 * GIB, 5 * GIB))
    check_ranges([LayerRange(0, 4, 8), LayerRange(4, 8, 8)], same, (5 * GIB, 5 * GIB))


@pytest.mark.parametrize("n_stages", [0, 9])
def test_every_stage_needs_a_layer(n_stages: int) -> None:
    same = ModelParts((1,) * 8, 0, 0)
    with pytest.raises(ConfigError, match=f"stages is {n_stages}; it must be 1 to 8"):
        partition(same, same, n_stages)
