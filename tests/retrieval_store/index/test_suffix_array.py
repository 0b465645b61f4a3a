from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_store.index.suffix_array import END, common_prefixes, count_tokens, sort_suffixes, sorted_buckets

# Few symbols repeat, many and large ones leave few tokens per 64-bit word.
TEXTS = st.one_of(
    st.lists(st.integers(0, 1), max_size=60),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.sampled_from([0, 7, 65535, 65536, 262143]), max_size=40),
)


def keys(text, order, depth):
    """The first ``depth`` tokens of every suffix in order; the text's end is larger than any token."""
    return [[*text[place : place + depth], float("inf")][:depth] for place in order]


@given(TEXTS, st.integers(1, 40))
def test_suffixes_are_in_the_order_of_their_first_tokens(text, depth):
    order = sort_suffixes(np.array(text, np.uint32), depth).tolist()
    assert sorted(order) == list(range(len(text)))
    found = keys(text, order, depth)
    assert found == sorted(found)


@pytest.mark.parametrize("period", [1, 2, 7])
def test_long_repeats_are_sorted_to_the_requested_depth(period):
    text = (list(range(period)) * 400)[:400]
    order = sort_suffixes(np.array(text, np.uint32), 400).tolist()
    assert keys(text, order, 400) == sorted(keys(text, order, 400))
    assert order == sorted(order, key=lambda place: keys(text, [place], 400))


@given(st.lists(st.sampled_from([0, 1, 2, 262143, END]), max_size=80), st.integers(1, 12), st.integers(1, 20))
def test_buckets_are_pieces_of_the_suffix_array(text, depth, size):
    array = np.array(text, np.uint32)
    counts = count_tokens(array)
    pieces = [piece.tolist() for piece in sorted_buckets(array, counts, depth, size)]
    order = list(chain.from_iterable(pieces))
    assert order == sort_suffixes(array, depth).tolist()
    starts = [place for place, token in enumerate(text) if token != END]
    # float("inf") stands for the end of the text and for END alike.
    endless = [float("inf") if token == END else token for token in text] + [float("inf")] * depth
    wanted = sorted(starts, key=lambda place: endless[place : place + depth])
    assert order == wanted
    for piece in pieces:
        assert len(piece) <= size or len({text[place] for place in piece}) == 1


@given(st.lists(st.sampled_from([0, 1, END]), max_size=60), st.integers(1, 12))
def test_the_common_prefixes_of_neighbours_are_those_of_a_comparison(text, depth):
    array = np.array(text, np.uint32)
    order = sort_suffixes(array, depth)
    for n, (place, before) in enumerate(zip(order[1:].tolist(), order.tolist(), strict=False), start=1):
        shared = 0
        while (
            shared < depth
            and max(place, before) + shared < len(text)
            and text[place + shared] == text[before + shared] != END
        ):
            shared += 1
        assert common_prefixes(array, order, depth)[n] == shared


def test_token_counts_add_up_across_pieces(monkeypatch):
    monkeypatch.setattr("retrieval_store.index.suffix_array._SCAN", 4)
    text = np.array([5, 0, END, 1, 9, 9, END, 0, 0], np.uint32)
    assert count_tokens(text).tolist() == [3, 1, 0, 0, 0, 1, 0, 0, 0, 2]
    monkeypatch.undo()
    assert count_tokens(text).tolist() == [3, 1, 0, 0, 0, 1, 0, 0, 0, 2]
