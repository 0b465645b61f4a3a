"""Recorded answers of every family come apart the same way, however they are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.answers.message import whole_message
from app.api.tools.answer import AnswerReader, Reading
from app.api.tools.families import FAMILIES
from app.api.tools.parts import Arguments, CallBegin, Reasoning, Text
from tests.support.recorded_calls import RECORDED, Recorded

OFFERED = frozenset({"get_weather", "search", "now"})
CASES = pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)


def reader_of(family: str, **more) -> AnswerReader:
    return AnswerReader(Reading(FAMILIES[family], OFFERED, has_reasoning=True, **more))


def taken_apart(reader: AnswerReader, pieces: Iterable[str]) -> Recorded:
    """What the pieces of a text are read into."""
    content = reasoning = ""
    calls: list[list[str]] = []
    parts = [part for piece in pieces for part in reader.push(piece)] + reader.flush()
    for part in parts:
        match part:
            case Text():
                content += part.text
            case Reasoning():
                reasoning += part.text
            case CallBegin():
                assert part.index == len(calls)
                calls.append([part.name, ""])
            case Arguments():
                assert part.index == len(calls) - 1
                calls[-1][1] += part.text
    return Recorded("", "", tuple((name, arguments) for name, arguments in calls), content, reasoning)


@CASES
def test_an_answer_is_read_as_it_was_meant(recorded: Recorded) -> None:
    found = taken_apart(reader_of(recorded.family), [recorded.text])
    expected = (recorded.calls, recorded.content, recorded.reasoning)
    assert (found.calls, found.content, found.reasoning) == expected


@CASES
def test_it_is_the_same_cut_at_every_character(recorded: Recorded) -> None:
    text = recorded.text
    whole = taken_apart(reader_of(recorded.family), [text])
    assert taken_apart(reader_of(recorded.family), text) == whole
    for at in range(len(text)):
        assert taken_apart(reader_of(recorded.family), [text[:at], text[at:]]) == whole


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>", "[", "]", "{"),
    *("}", '"', '"name"', '"now"', '"arguments"', '"parameters"', ":", ",", ";", " ", "\n", "\\", "x", "1", "null"),
    *('{"name": "now", "arguments": {"a": "b"}}', '{"name": "now", "parameters": {}}', "now", " " * 300),
]


@pytest.mark.parametrize("family", FAMILIES)
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=14), is_open=st.booleans())
def test_no_text_is_read_differently_in_pieces(family: str, pieces: list[str], is_open: bool) -> None:
    text = "".join(pieces)
    whole = taken_apart(reader_of(family, is_open=is_open), [text])
    assert taken_apart(reader_of(family, is_open=is_open), pieces) == whole
    assert taken_apart(reader_of(family, is_open=is_open), text) == whole


@pytest.mark.parametrize("family", FAMILIES)
@given(text=st.text(st.characters(exclude_characters="{<[", exclude_categories=["Cs"]), max_size=80))
def test_text_without_marks_and_braces_is_content_to_the_letter(family: str, text: str) -> None:
    assert taken_apart(reader_of(family), text).content == text


def test_arguments_go_on_as_they_come() -> None:
    reader = reader_of("hermes")
    assert reader.push('<tool_call>{"name": "now", "argu') == []
    [begin, first] = reader.push('ments": {"a": 1')
    assert isinstance(begin, CallBegin)
    assert first == Arguments(0, '{"a": 1')
    assert reader.push(", ") == [Arguments(0, ", ")]
    assert reader.push('"b": 2}') == [Arguments(0, '"b": 2}')]


def test_only_the_first_call_counts_where_calls_are_not_parallel() -> None:
    recorded = RECORDED["qwen, text and two calls"]
    found = taken_apart(reader_of("hermes", most_calls=1), recorded.text)
    assert (found.calls, found.content) == (recorded.calls[:1], recorded.content)


def test_reasoning_that_the_prompt_began_needs_no_opening_mark() -> None:
    found = taken_apart(reader_of("hermes", is_open=True), "\nHm.\n</think>\n\nYes.")
    assert (found.reasoning, found.content) == ("Hm.", "Yes.")
    cut = taken_apart(reader_of("hermes", is_open=True), "Hm <tool_call> ")
    assert (cut.reasoning, cut.content, cut.calls) == ("Hm <tool_call>", "", ())


@pytest.mark.parametrize(("family", "pattern"), [("hermes", r"call_[0-9a-f]{24}"), ("mistral", r"[A-Za-z0-9]{9}")])
def test_every_call_has_an_id_of_its_own_in_the_familys_form(family: str, pattern: str) -> None:
    text = next(one.text for one in RECORDED.values() if one.family == family and len(one.calls) == 2)
    message = whole_message(reader_of(family), text)
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(pattern, one) for one in ids)
