"""Counts of induction heads, and the file that stores them."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.protocol import Artefacts, Needs, Outcome
from engine.tree import EMPTY_TREE
from speculators.pld_plus.induction_heads import (
    HeadCounter,
    HeadScore,
    HeadsFile,
    best_heads,
    copied_from,
    read_heads,
    write_heads,
)
from tests.speculators.drafts import view

FOUND = HeadsFile(
    model="abc",
    n_layers=2,
    n_heads=3,
    n_tokens=10,
    heads=[HeadScore(1, 2, 0.7), HeadScore(0, 1, 0.2)],
    hits=[[0, 2, 0], [0, 0, 7]],
)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_a_token_is_copied_from_the_place_after_the_longest_matching_suffix(x):
    best, longest = None, 0
    for j in range(len(x) - 1):
        n = 0
        while n <= j and x[j - n] == x[len(x) - 1 - n]:
            n += 1
        if n and n >= longest:  # the latest of several
            best, longest = j, n
    assert copied_from(np.array(x, np.int32)) == best


def test_a_head_that_attends_to_the_copied_token_is_counted():
    """Head (1, 0) is a perfect induction head, (0, 1) errs every second time, others attend to the first token."""
    text = [1, 5, 6, 7, 5, 6, 8, 5, 6, 7, 5, 9, 9]
    counter = HeadCounter(2, 2)
    assert counter.needs == Needs(heads=((0, 0), (0, 1), (1, 0), (1, 1)))
    request = view(text[:3], vocab_size=10)
    counter.observe(request, Outcome([], EMPTY_TREE))  # a chunk that is not the last
    n_counted = 0
    for end in range(4, len(text) + 1):
        request.context.extend(text[end - 1 : end])
        attention = np.zeros((4, end - 1), np.float32)
        attention[:, 0] = 0.1
        source = copied_from(request.context.view)
        if source is not None:
            n_counted += 1
            attention[2, source] = 0.9
            if n_counted % 2:
                attention[1, source] = 0.9
        counter.observe(request, Outcome([text[end - 1]], EMPTY_TREE, artefacts=Artefacts(attention=attention)))
        assert counter.propose(request, 64) == []
    assert counter.n_tokens == n_counted == 7
    assert counter.hits.tolist() == [[0, 4], [7, 0]]
    assert best_heads(counter, 50) == [HeadScore(1, 0, 1.0), HeadScore(0, 1, 0.571429)]


def test_the_heads_with_most_hits_or_else_most_attention_are_kept():
    counter = HeadCounter(2, 3)
    counter.n_tokens = 10
    counter.hits[:] = [[3, 0, 9], [3, 1, 0]]
    counter.source_attention[:] = [[0.1, 9, 0.1], [0.2, 0.1, 8]]

    def places(keep):
        return [(one.layer, one.head) for one in best_heads(counter, keep)]

    assert places(2) == [(0, 2), (1, 0)]  # equal hits: more attention to sources
    assert places(50) == [(0, 2), (1, 0), (0, 0), (1, 1)]
    counter.hits[:] = 0  # then by attention
    assert places(2) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "something"}, r"'something' - at `\$\.format`"),
        ({"version": 2}, r"2 - at `\$\.version`"),
        ({"model": "other"}, "another model .*other.*abc"),
        ({"n_layers": 4}, "4 layers of 3 heads, the model has 2 of 3"),
        ({"heads": []}, r"length >= 1 - at `\$\.heads`"),
        ({"heads": [HeadScore(0, 1, 1.0), HeadScore(0, 1, 0.5)]}, "twice"),
        ({"heads": [HeadScore(2, 0, 1.0)]}, r"beyond layer 1 or head 2 among \(\(2, 0\),\)"),
        ({"heads": [HeadScore(0, -1, 1.0)]}, r">= 0 - at `\$\.heads"),
    ],
)
def test_a_file_that_does_not_fit_the_model_is_refused(changes, message, tmp_path):
    path = tmp_path / "heads.json"
    write_heads(path, msgspec.structs.replace(FOUND, **changes))
    with pytest.raises(ConfigError, match=f"heads\\.json .*{message}"):
        read_heads(path, "abc", 2, 3)


def test_a_heads_file_round_trip_and_broken_files(tmp_path):
    path = tmp_path / "new" / "heads.json"
    write_heads(path, FOUND)
    assert read_heads(path, "abc", 2, 3) == FOUND
    assert FOUND.pairs == ((1, 2), (0, 1))
    assert [file.name for file in path.parent.iterdir()] == ["heads.json"]
    assert json.loads(path.read_text())["heads"][0] == {"layer": 1, "head": 2, "rate": 0.7}
    for raw in (b"", b"\xff\xfe", b"[]", b"{}", b'{"heads": 3}', msgspec.json.encode(FOUND)[:-5], b"null"):
        path.write_bytes(raw)
        with pytest.raises(ConfigError, match=r"heads\.json is not a heads file"):
            read_heads(path, "abc", 2, 3)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_heads(tmp_path / "missing", "abc", 2, 3)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_heads(path / "below", FOUND)
