import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval_store.suffix_array import sort_suffixes

# Few symbols repeat, many and large ones leave few tokens per 64-bit word.
TEXTS = st.one_of(
    st.lists(st.integers(0, 1), max_size=60),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.sampled_from([0, 7, 65535, 65536, 262143]), max_size=40),
)


def keys(text, order, depth):
    """The first ``depth`` tokens of every suffix in order; the text's end is larger than any token."""
    return [[*text[place : place + depth], float("inf")][:depth] for place in order]


@settings(deadline=None)
@given(TEXTS, st.integers(1, 40))
def test_suffixes_are_in_the_order_of_their_first_tokens(text, depth):
    order = sort_suffixes(np.array(text, np.uint32), depth).tolist()
    assert sorted(order) == list(range(len(text)))
    found = keys(text, order, depth)
    assert found == sorted(found)


@pytest.mark.parametrize("period", [1, 2, 7])
def test_long_repeats_are_decided_as_deep_as_asked(period):
    text = (list(range(period)) * 400)[:400]
    order = sort_suffixes(np.array(text, np.uint32), 400).tolist()
    assert keys(text, order, 400) == sorted(keys(text, order, 400))
    assert order == sorted(order, key=lambda place: keys(text, [place], 400))
