"""Recorded answers of every family are parsed the same way, however the stream cuts them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.answers.completions import encode, whole_message
from app.api.tools.answer import MOST_SPACES, AnswerReader
from app.api.tools.families import FAMILIES
from app.api.tools.parts import AnswerForm, Arguments, CallBegin, Reasoning, TextPart
from tests.support.recorded_calls import RECORDED, RecordedOutput

OFFERED = frozenset({"get_weather", "search", "now"})


def reader_of(family: str, **more: Any) -> AnswerReader:
    return AnswerReader(AnswerForm(FAMILIES[family], OFFERED, has_reasoning=True, **more))


def parsed(reader: AnswerReader, pieces: Iterable[str]) -> RecordedOutput:
    content = reasoning = ""
    calls: list[list[str]] = []
    parts = [part for piece in pieces for part in reader.push(piece)] + reader.flush()
    for part in parts:
        match part:
            case TextPart():
                content += part.text
            case Reasoning():
                reasoning += part.text
            case CallBegin():
                assert part.index == len(calls)
                calls.append([part.name, ""])
            case Arguments():
                assert part.index == len(calls) - 1
                calls[-1][1] += part.text
    return RecordedOutput("", "", tuple((name, arguments) for name, arguments in calls), content, reasoning)


@pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)
def test_an_answer_is_parsed_alike_whole_and_cut_anywhere(recorded: RecordedOutput) -> None:
    text = recorded.text
    whole = parsed(reader_of(recorded.family), [text])
    expected = (recorded.calls, recorded.content, recorded.reasoning)
    assert (whole.calls, whole.content, whole.reasoning) == expected
    assert parsed(reader_of(recorded.family), text) == whole
    for at in range(len(text)):
        assert parsed(reader_of(recorded.family), [text[:at], text[at:]]) == whole


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>", "[", "]", "{"),
    *("}", '"', '"name"', '"now"', '"arguments"', '"parameters"', ":", ",", ";", " ", "\n", "\\", "x", "1", "null"),
    *('{"name": "now", "arguments": {"a": "b"}}', '{"name": "now", "parameters": {}}', "now", " " * 300),
]


@pytest.mark.parametrize("family", FAMILIES)
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=14), is_open=st.booleans())
def test_no_text_is_parsed_differently_in_pieces(family: str, pieces: list[str], is_open: bool) -> None:
    text = "".join(pieces)
    whole = parsed(reader_of(family, is_open=is_open), [text])
    assert parsed(reader_of(family, is_open=is_open), pieces) == whole
    assert parsed(reader_of(family, is_open=is_open), text) == whole


def test_arguments_are_passed_on_as_they_arrive() -> None:
    reader = reader_of("hermes")
    assert reader.push('<tool_call>{"name": "now", "argu') == []
    [begin, first] = reader.push('ments": {"a": 1')
    assert isinstance(begin, CallBegin)
    assert first == Arguments(0, '{"a": 1')
    assert reader.push(", ") == [Arguments(0, ", ")]
    assert reader.push('"b": 2}') == [Arguments(0, '"b": 2}')]


def test_reasoning_begun_by_the_prompt_needs_no_opening_mark() -> None:
    found = parsed(reader_of("hermes", is_open=True), "\nHm.\n</think>\n\nYes.")
    assert (found.reasoning, found.content) == ("Hm.", "Yes.")
    cut = parsed(reader_of("hermes", is_open=True), "Hm <tool_call> ")
    assert (cut.reasoning, cut.content, cut.calls) == ("Hm <tool_call>", "", ())


def test_white_space_without_end_is_passed_on() -> None:
    for is_open, kind in ((True, Reasoning), (False, TextPart)):
        reader = reader_of("hermes", is_open=is_open)
        assert reader.push("x") == [kind("x")]
        assert reader.push(" " * 1000) == [kind(" " * (1000 - MOST_SPACES))]
        assert reader.push(" " * 1000) == [kind(" " * 1000)]


@pytest.mark.parametrize("value", ['"name": "\\ud83d"', '"name": "now", "arguments": "\\ud83d"'])
def test_half_a_character_in_a_call_is_no_error(value: str) -> None:
    message = whole_message(reader_of("hermes"), f"<tool_call>{{{value}}}</tool_call>")
    assert encode(message)


@pytest.mark.parametrize(("family", "pattern"), [("hermes", r"call_[0-9a-f]{24}"), ("mistral", r"[A-Za-z0-9]{9}")])
def test_every_call_has_its_own_id_in_the_familys_form(family: str, pattern: str) -> None:
    text = next(one.text for one in RECORDED.values() if one.family == family and len(one.calls) == 2)
    message = whole_message(reader_of(family), text)
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(pattern, one) for one in ids)
