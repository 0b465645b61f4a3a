"""Text of a stream gets the sources of its tokens, however it is cut, and is always shown whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.answers import TraceReader
from tests.support.trace_cases import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_terminal_reads_every_case(case: dict[str, Any]) -> None:
    reader = TraceReader()
    parts = [part for chunk in case["chunks"] for part in reader.push(chunk["text"], chunk["trace"])]
    assert [*parts, *reader.end()] == [tuple(part) for part in case["parts"]]
    assert reader.counts == dict(case["tokens"])


@pytest.mark.parametrize(
    "trace",
    [
        None,
        7,
        ["step"],
        [{"tokens": 1}],
        [{"tokens": [{"text": "One", "node": 3}], "nodes": []}],
        [{"tokens": [{"text": "One", "node": -1}], "nodes": [{"sources": ["pld"]}]}],
        [{"tokens": [{"text": "One", "node": 0}], "nodes": [{"sources": []}]}],
    ],
)
def test_a_trace_of_another_form_has_no_sources(trace: Any) -> None:
    assert TraceReader().push("One", trace) == [("One", None)]


TOKENS = st.one_of(st.text("ab \ufffd", max_size=3), st.sampled_from(["bytes:\\xf0", "bytes:\\xzz"]))
STEPS = st.lists(st.tuples(TOKENS, st.sampled_from([None, 0])), max_size=3)


@given(st.lists(st.tuples(st.text("ab \ufffd", max_size=4), STEPS), max_size=6))
def test_the_whole_text_is_shown_with_any_trace(chunks: list[tuple[str, list[tuple[str, int | None]]]]) -> None:
    reader = TraceReader()
    shown = ""
    for text, tokens in chunks:
        step = {"tokens": [{"text": token, "node": node} for token, node in tokens], "nodes": [{"sources": ["pld"]}]}
        shown += "".join(part for part, _ in reader.push(text, [step]))
    assert shown + "".join(part for part, _ in reader.end()) == "".join(text for text, _ in chunks)
