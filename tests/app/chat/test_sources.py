"""Text of a stream gets the sources of its tokens, however it is cut, and is always shown whole."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.answers import TokenSources

Tokens = list[tuple[str, str | None]]


def trace(*tokens: tuple[str, str | None]) -> list[dict[str, Any]]:
    """One step for each token."""
    return [
        {
            "tokens": [{"text": text, "node": None if source is None else 0}],
            "nodes": [] if source is None else [{"sources": [source, "another"]}],
        }
        for text, source in tokens
    ]


def shown(sources: TokenSources, *texts: str) -> Tokens:
    pieces: Tokens = []
    for text in texts:
        sources.of(text, lambda piece, source: pieces.append((piece, source)))
    return pieces


THREE: Tokens = [("One", None), (" two", "pld"), (" three", "suffix")]
BYTES: Tokens = [("bytes:\\xf0\\x9f", "pld"), ("bytes:\\xa6\\x8a", "pld"), (" fox", "suffix"), ("<end>", "pld")]


@pytest.mark.parametrize(
    ("tokens", "texts", "pieces"),
    [
        (THREE, ["One two three"], THREE),
        (THREE[:2], ["On", "e t", "wo"], [("On", None), ("e", None), (" t", "pld"), ("wo", "pld")]),
        (BYTES, ["🦊 fox"], [("🦊", None), (" fox", "suffix")]),
        ([("<think>", None), *THREE[1:]], [" two", " three"], THREE[1:]),
    ],
    ids=["whole", "cut", "a character of several tokens", "a token without text"],
)
def test_each_token_has_its_source(tokens: Tokens, texts: list[str], pieces: Tokens) -> None:
    sources = TokenSources()
    sources.told(trace(*tokens))
    assert shown(sources, *texts) == pieces
    assert sources.counts == Counter(source for _, source in tokens)


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
def test_a_trace_of_another_form_has_no_sources(trace: Any) -> None:
    sources = TokenSources()
    sources.told(trace)
    assert shown(sources, "One") == [("One", None)]


PIECES = st.lists(st.text("ab \ufffd", max_size=4), max_size=6)
TOKENS = st.one_of(st.text("ab \ufffd", max_size=3), st.just("bytes:\\xf0"))


@given(PIECES, st.lists(st.tuples(TOKENS, st.sampled_from([None, "pld"])), max_size=8))
def test_the_whole_text_is_shown_with_any_trace(texts: list[str], tokens: Tokens) -> None:
    sources = TokenSources()
    sources.told(trace(*tokens))
    assert "".join(piece for piece, _ in shown(sources, *texts)) == "".join(texts)
