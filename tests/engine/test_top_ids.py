"""Read-back ids: a mapping for those who ask about one node, arrays for those who want all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.top_ids import NO_TOP_IDS, TopIds

MAPPINGS = st.integers(1, 4).flatmap(
    lambda k: st.dictionaries(st.integers(-1, 30), st.lists(st.integers(0, 99), min_size=k, max_size=k), max_size=8)
)


@given(MAPPINGS)
def test_arrays_are_the_mapping(mapping: dict[int, list[int]]) -> None:
    top = TopIds.of(mapping)
    assert TopIds.of(top) is top
    assert dict(top) == mapping
    assert list(top) == top.nodes.tolist() == sorted(mapping)
    assert len(top) == len(mapping)
    assert (top.nodes.dtype, top.ids.dtype, top.logprobs) == (np.int32, np.int32, None)
    assert top.ids.tolist() == [mapping[node] for node in sorted(mapping)]
    for node in range(-2, 32):
        assert (node in top) == (node in mapping)
        assert top.get(node, ()) == mapping.get(node, ())


def test_nothing_read_back_is_empty() -> None:
    assert dict(NO_TOP_IDS) == {}
    assert TopIds.of({}) == NO_TOP_IDS
    with pytest.raises(KeyError):
        NO_TOP_IDS[-1]


def test_equal_means_equal_arrays() -> None:
    nodes, ids = np.array([-1, 4], np.int32), np.array([[1, 2], [3, 4]], np.int32)
    logprobs = np.log(np.full((2, 2), 0.25, np.float32))
    same = TopIds(nodes.copy(), ids.copy(), logprobs.copy())
    assert TopIds(nodes, ids, logprobs) == same
    assert hash(TopIds(nodes, ids)) == hash(TopIds(nodes.copy(), ids.copy()))
    others = (
        TopIds(nodes, ids),
        TopIds(nodes, ids + 1, logprobs),
        TopIds(nodes + 1, ids, logprobs),
        TopIds(nodes, ids, logprobs - 1),
    )
    for other in others:
        assert other != same
        assert same != other


@pytest.mark.parametrize(
    ("nodes", "ids", "logprobs"),
    [((2,), (3, 4), None), ((2,), (2,), None), ((2,), (2, 4), (2, 3)), ((2, 1), (2, 4), None)],
)
def test_shapes_must_fit_together(
    nodes: tuple[int, ...], ids: tuple[int, ...], logprobs: tuple[int, ...] | None
) -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        TopIds(
            np.zeros(nodes, np.int32),
            np.zeros(ids, np.int32),
            None if logprobs is None else np.zeros(logprobs, np.float32),
        )
