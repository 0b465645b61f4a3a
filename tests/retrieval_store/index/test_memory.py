from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_store.index.index import Limits
from retrieval_store.index.memory import MemoryIndex
from retrieval_store.index.suffix_search import MAX_ID

IDS = st.sampled_from([0, 1, 2, 65537, 262143])  # 65537 is 1 in 16 bits
DOCUMENTS = st.lists(st.lists(IDS, max_size=25), max_size=6)
CONTEXT = st.lists(IDS, max_size=20)


def query(documents, context, **limits):
    return MemoryIndex(documents).query(np.array(context, np.int32), Limits(**limits))


def brute_force(documents, context, longest, shortest, depth):
    """(match, occurrences, how many of them continue along each path)."""
    for length in range(min(longest, len(context)), shortest - 1, -1):
        suffix = context[len(context) - length :]
        after = [
            document[end : end + depth]
            for document in documents
            for end in range(length, len(document) + 1)
            if document[end - length : end] == suffix
        ]
        if after:
            paths = Counter(tuple(text[:n]) for text in after for n in range(1, len(text) + 1))
            return length, len(after), dict(paths)
    return None


def paths(found):
    """Path of token ids -> count."""
    made = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        made.append((*(made[parent] if parent >= 0 else ()), token))
    assert len(set(made)) == len(made)
    return dict(zip(made, found.counts, strict=True))


@given(DOCUMENTS, CONTEXT, st.integers(1, 8), st.integers(0, 8), st.integers(1, 10))
def test_a_query_equals_a_brute_force_search(documents, context, shortest, more, depth):
    longest = shortest + more
    found = query(documents, context, longest=longest, shortest=shortest, depth=depth, nodes=10_000)
    wanted = brute_force(documents, context, longest, shortest, depth)
    if wanted is None:
        assert found is None
        return
    assert (found.match, found.counted, paths(found)) == wanted
    assert all(parent < node for node, parent in enumerate(found.parents))


@given(DOCUMENTS, CONTEXT, st.integers(1, 12))
def test_the_nodes_kept_are_the_most_frequent_and_form_a_tree(documents, context, nodes):
    every = brute_force(documents, context, 16, 2, 10)
    found = query(documents, context, nodes=nodes)
    if every is None:
        assert found is None
        return
    kept, counts = paths(found), every[2]
    assert len(kept) == min(nodes, len(counts))
    assert sorted(kept.values()) == sorted(counts.values())[-len(kept) :] if kept else not counts
    assert kept.items() <= counts.items()
    for path in kept:  # among equals the shallow ones come first
        assert all(len(path) <= len(left) for left in counts.keys() - kept.keys() if counts[left] == kept[path])


def test_samples_are_spread_evenly_over_all_occurrences():
    documents = [[1, 2, 100 + i // 30] for i in range(300)]
    found = query(documents, [1, 2], samples=50)
    assert found.counted == 50
    assert paths(found) == {(100 + i,): 5 for i in range(10)}


def test_nothing_crosses_from_one_document_to_the_next():
    assert query([[1, 2], [3, 4]], [2, 3]) is None
    assert query([[5]], [5, 5]) is None
    assert query([[]], [5, 5]) is None
    found = query([[1, 2], [3, 4]], [1, 2])
    assert (found.match, found.counted, list(found.tokens)) == (2, 1, [])


def test_ids_beyond_any_in_the_corpus_do_not_match():
    index = MemoryIndex([[1, 2, 3]])
    for head in (4, 5, 262143, 2**31 - 1):
        assert index.query(np.array([head, 2], np.int32), Limits(shortest=1, longest=2)).match == 1
        assert index.query(np.array([2, head], np.int32), Limits(shortest=1)) is None


def test_ids_and_limits_out_of_range_are_refused():
    for bad_id in (-1, MAX_ID + 1):
        with pytest.raises(ValueError, match="token ids"):
            MemoryIndex([[1, bad_id]])
    for bad in (
        {"shortest": 0},
        {"longest": 1},
        {"samples": 0},
        {"depth": 0},
        {"nodes": 0},
        {"longest": 17, "depth": 16},
    ):
        with pytest.raises(ValueError):
            query([[1, 2, 3]], [1, 2], **bad)
