"""Contexts and rows out of outcomes, and tables that forget the oldest."""

import numpy as np
import pytest

from engine.protocol import Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from speculators.peers.scored_contexts import RecentRows, scored_contexts
from speculators.testing import HashTarget

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def view(prompt=PROMPT):
    return RequestView.of(0, Request(prompt, SamplingParams()), 64)


def test_prompt_positions_have_the_tokens_up_to_them_as_context():
    target = HashTarget(48)
    whole = target.read_prompt(PROMPT)
    request = view()
    rows = list(scored_contexts(request, Outcome([], EMPTY_TREE, prompt_top_ids=whole.prompt_top_ids), 3, 4))
    assert rows == []  # no probabilities, no rows
    for start in range(len(PROMPT)):
        outcome = target.read_prompt(PROMPT, start)
        rows = list(scored_contexts(request, outcome, 3, 4))
        assert [row[0] for row in rows] == [
            tuple(PROMPT[max(end - 3, 0) : end]) for end in range(start + 1, len(PROMPT) + 1)
        ]
        for context, (_, ids, p) in enumerate(rows, start):
            assert ids == target.top_ids(PROMPT[: context + 1])[:4]
            assert p == pytest.approx([8 / 15, 4 / 15, 2 / 15, 1 / 15])


def test_nodes_have_their_path_behind_the_context():
    request = view()
    request.context.extend([8, 7])
    tree = TokenTree([8, 20, 21], [ROOT, 0, ROOT])
    ids = np.array([[8, 1], [7, 2], [4, 3]], np.int32)
    top = TopIds(np.array([ROOT, 0, 1], np.int32), ids, np.log(np.array([[0.6, 0.2]] * 3, np.float32)))
    rows = list(scored_contexts(request, Outcome([8, 7], tree, (0,), top), 4, 2))
    assert [row[:2] for row in rows] == [
        ((5, 9, 2, 6), [8, 1]),
        ((9, 2, 6, 8), [7, 2]),
        ((2, 6, 8, 20), [4, 3]),
    ]
    assert all(row[2] == pytest.approx([0.75, 0.25]) for row in rows)


def test_the_row_written_longest_ago_gives_way():
    rows = RecentRows(2)
    for context, row in (((1,), "a"), ((2,), "b"), ((1,), "c"), ((3,), "d")):
        rows.put(context, row)
    assert rows == {(1,): "c", (3,): "d"}
