"""Trees that are built quickly are those of the constructor; buffers of tokens keep earlier views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tree import ROOT, TokenBuffer, TokenTree

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)
ATTRIBUTES = (
    "tokens", "parents", "sources", "probe", "source_names", "q", "probe_ends", "scores", "proposers", "has_probes",
    "depths", "children", "is_chain",
)  # fmt: skip


@given(TOKENS, st.booleans(), st.sampled_from([1, 20]))
def test_a_chain_is_the_tree_of_consecutive_parents(tokens: list[int], has_scores: bool, times: int) -> None:
    tokens, scores = tokens * times, [0.5] * len(tokens) * times if has_scores else None
    fast = TokenTree.chain(tokens, "pld", scores)
    slow = TokenTree(tokens, range(ROOT, len(tokens) - 1), source_names=("pld",), scores=scores)
    for name in ATTRIBUTES:
        assert getattr(fast, name) == getattr(slow, name), name
    assert fast.parent_array.tolist() == slow.parent_array.tolist()
    assert fast.find(tokens) == slow.find(tokens)
    fast.parents.append(0)
    assert TokenTree.chain(tokens, "pld").parents == slow.parents


@pytest.mark.parametrize(
    ("parents", "probe", "error"),
    [
        ([ROOT, 1], None, "node 1 has parent 1"),
        ([ROOT, 2, 0], None, "node 1 has parent 2"),
        ([ROOT, -2], None, "node 1 has parent -2"),
        ([ROOT, 2, 0], [True, True, True], "node 1 has parent 2"),
        ([ROOT, 0], [True, False], "below probe 0"),
        ([ROOT], [True, True], "all must be equal"),
    ],
)
def test_impossible_trees_are_refused(parents: list[int], probe: list[bool] | None, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        TokenTree([7] * len(parents), parents, probe=probe)


@given(TOKENS, st.lists(TOKENS, max_size=6), st.booleans())
def test_a_buffer_holds_what_was_appended(first: list[int], added: list[list[int]], as_arrays: bool) -> None:
    buffer, tokens, kept = TokenBuffer(first), list(first), []
    for more in added:
        kept.append((buffer.view, buffer.before(len(tokens) // 2), list(tokens)))
        buffer.extend(np.array(more, np.int32) if as_arrays else more)  # type: ignore[arg-type]
        tokens += more
        assert buffer.view.tolist() == buffer.array[: len(buffer)].tolist() == tokens
        assert len(buffer) == buffer.length == len(tokens)
    for view, half, before in kept:
        assert view.tolist() == before
        assert half.view.tolist() == before[: len(before) // 2]
