"""Text of a stream finds the source of its tokens, however it is cut, and is shown whole in any case."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.answers import Sources


def trace(*tokens: tuple[str, str | None]) -> list[dict[str, Any]]:
    """One step for each token."""
    return [
        {
            "tokens": [{"text": text, "node": None if source is None else 0}],
            "nodes": [] if source is None else [{"sources": [source, "another"]}],
        }
        for text, source in tokens
    ]


def shown(sources: Sources, *texts: str) -> list[tuple[str, str | None]]:
    pieces: list[tuple[str, str | None]] = []
    for text in texts:
        sources.of(text, lambda piece, source: pieces.append((piece, source)))
    return pieces


def test_each_token_has_its_source_and_the_targets_own_have_none() -> None:
    sources = Sources()
    sources.told(trace(("One", None), (" two", "pld"), (" three", "suffix")))
    assert shown(sources, "One two three") == [("One", None), (" two", "pld"), (" three", "suffix")]


def test_text_may_come_later_than_its_tokens_and_cut_within_one() -> None:
    sources = Sources()
    sources.told(trace(("One", None), (" two", "pld")))
    assert shown(sources, "On", "e t", "wo") == [("On", None), ("e", None), (" t", "pld"), ("wo", "pld")]


def test_a_character_of_several_tokens_has_no_source_and_the_next_token_has_its_own() -> None:
    sources = Sources()
    sources.told(trace(("bytes:\\xf0\\x9f", "pld"), ("bytes:\\xa6\\x8a", "pld"), (" fox", "suffix"), ("<end>", "pld")))
    assert shown(sources, "🦊 fox") == [("🦊", None), (" fox", "suffix")]
    assert sources.counts == {"pld": 3, "suffix": 1}, "tokens, however their text is shown"


def test_a_token_whose_text_is_left_out_costs_no_other_its_source() -> None:
    sources = Sources()
    sources.told(trace(("<think>", None), ("One", "pld"), (" two", "suffix")))
    assert shown(sources, "One", " two") == [("One", "pld"), (" two", "suffix")]


@pytest.mark.parametrize(
    "trace",
    [
        7,
        ["step"],
        [{"tokens": 1}],
        [{"tokens": [{"text": "One", "node": 3}], "nodes": []}],
        [{"tokens": [{"text": "One", "node": -1}], "nodes": [{"sources": ["pld"]}]}],
        [{"tokens": [{"text": "One", "node": 0}], "nodes": [{"sources": []}]}],
    ],
)
def test_a_trace_of_another_form_tells_no_source(trace: Any) -> None:
    sources = Sources()
    sources.told(trace)
    assert shown(sources, "One") == [("One", None)]


PIECES = st.lists(st.text("ab \ufffd", max_size=4), max_size=6)
TOKENS = st.one_of(st.text("ab \ufffd", max_size=3), st.just("bytes:\\xf0"))


@given(PIECES, st.lists(st.tuples(TOKENS, st.sampled_from([None, "pld"])), max_size=8))
def test_whatever_a_trace_says_the_text_is_shown_whole(texts: list[str], tokens: list[tuple[str, str | None]]) -> None:
    sources = Sources()
    sources.told(trace(*tokens))
    assert "".join(piece for piece, _ in shown(sources, *texts)) == "".join(texts)
