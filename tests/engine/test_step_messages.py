"""Steps and results are unchanged by the wire; anything else is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import TokenLogprob
from engine.grammar.grammar import Grammar, Thought
from engine.protocol import Branch, Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, StepResult, Work, WorkResult, decode_result, decode_step, encode
from engine.top_ids import NO_TOP_IDS, TopIds
from engine.tree import TokenTree
from tests.support.grammars import of_regex

FP32 = np.array([[0.5, 0.25], [0.25, 0.75]], np.float32)
IDS = np.array([[5, 2**31 - 1], [7, 8]], np.int32)
NEEDS = Needs(1, 2, 3, 4, ((5, 6), (7, 8)), True, 9, True, False)
TREE = TokenTree([4, 5], [-1, 0], [0, 1], [False, True], ["pld", ""], FP32, {1})
PARAMS = SamplingParams(
    max_tokens=9, min_tokens=2, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, repetition_penalty=1.1,
    presence_penalty=0.2, frequency_penalty=0.3, logit_bias={7: -1.5}, allowed_ids=(1, 2), bad_words=((1,), (2, 3)),
    seed=2**64 - 1, choice=3, stop_ids=(2,), stop=("a", ""), logprobs=2, prompt_logprobs=1, verification="rejection",
    grammar=Grammar(of_regex("a").source, of_regex("b").source, Thought("</think>", "<think>")),
)  # fmt: skip
START = SequenceStart(2**53, PARAMS, 5, NEEDS, 3, [8, 9], [1, 2, 3], "request")
WORK = Work(1, 2, [3], TREE, [1], [4], False, 5, True, False, 6, [7])
LOGPROBS = [TokenLogprob(3, -0.5, ((3, -0.5), (4, -1.5)))]
DRAFT = Branch([4, 7], "eagle", [-1, -1], q=FP32)
RESULT = WorkResult(
    1, [4, 6], [0], LOGPROBS, TopIds(np.array([-1, 3], np.int32), IDS, FP32), IDS, FP32, FP32[:, 1:], FP32.T, DRAFT,
    0.5, LOGPROBS, "no room",
)  # fmt: skip
STEPS = [Step(2**53, [WORK, Work(2, 0, [1])], [START], [7]), Step(1, [])]
RESULTS = [StepResult(2**53, [RESULT, WorkResult(2)], 0.25, "failed", (0.5, 1.5)), StepResult(1, [], 0.0)]


def plain(value: Any) -> Any:
    """A message as values that compare: arrays and trees have no useful ``==``."""
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.tolist())
    if isinstance(value, TokenTree):
        rest = (value.tokens, value.parents, value.sources, value.probe, value.source_names, value.probe_ends)
        return ("tree", *rest, plain(value.q))
    if isinstance(value, TopIds):
        return ("top ids", plain(value.nodes), plain(value.ids), plain(value.logprobs))
    if isinstance(value, msgspec.Struct):
        return (type(value), *(plain(getattr(value, name)) for name in value.__struct_fields__))
    if dataclasses.is_dataclass(value) and not isinstance(value, Needs):
        return (type(value), *(plain(getattr(value, one.name)) for one in dataclasses.fields(value)))
    if isinstance(value, list | tuple):
        return (type(value), *map(plain, value))
    return value


def test_every_field_of_a_message_arrives_as_it_was_sent() -> None:
    for message in (PARAMS, START, WORK, RESULT):  # a new field must have a value here
        defaults = zip(type(message).__struct_fields__[::-1], type(message).__struct_defaults__[::-1], strict=False)
        assert [name for name, default in defaults if plain(getattr(message, name)) == plain(default)] == []
    for step in STEPS:
        assert plain(decode_step(encode(step))) == plain(step)
    for result in RESULTS:
        assert plain(decode_result(encode(result))) == plain(result)


def test_top_ids_are_a_mapping_from_nodes() -> None:
    top = RESULT.top_ids
    assert dict(top) == {-1: [5, 2**31 - 1], 3: [7, 8]}
    assert (3 in top, 2 in top, 4 in top, len(top), top.get(2, ())) == (True, False, False, 2, ())
    assert TopIds.of(top) is top
    assert TopIds.of(dict(top)).ids.tolist() == IDS.tolist()
    assert dict(NO_TOP_IDS) == {}
    for shape in ((2, 4), (1,), (1, 2, 2)):
        with pytest.raises(ValueError, match="must be"):
            TopIds(np.zeros(1, np.int32), np.zeros(shape, np.int32))


@given(st.binary(max_size=40))
def test_noise_is_refused(raw: bytes) -> None:
    for decode in (decode_step, decode_result):
        with pytest.raises((msgspec.ValidationError, msgspec.DecodeError)):
            decode(raw)


@pytest.mark.parametrize(
    "tree",
    [
        [[1], [0], [0], [False], ["a"], [], None],  # a node that is its own parent
        [[1], [], [0], [False], ["a"], [], None],  # lengths differ
        [[1], [-2], [0], [False], ["a"], [], None],  # a parent before the root
        [[1, 2], [-1, 0], [0, 0], [True, False], ["a"], [], None],  # a node below a probe
        [[1], [-1], [0], [False], ["a"], [], ["<f8", [1, 1], b"12345678"]],  # a dtype that no message has
        [[1], [-1], [0], [False], ["a"], [], ["<f4", [9, 9], b"1234"]],  # fewer bytes than the shape needs
    ],
)
def test_a_malformed_tree_or_array_is_refused(tree: list[Any]) -> None:
    work = {"seq": 1, "n_cached": 0, "tokens": [1], "tree": tree}
    with pytest.raises(msgspec.ValidationError):
        decode_step(msgspec.msgpack.encode({"step_id": 1, "work": [work]}))
    with pytest.raises(msgspec.ValidationError):
        decode_result(encode(StepResult(1, [WorkResult(2, hidden=FP32.astype(np.float64))], 0.0)))  # type: ignore[arg-type]
