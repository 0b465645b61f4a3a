"""Steps and results survive the wire unchanged; what is not one is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.events import TokenLogprob
from engine.protocol import Branch, Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, StepResult, Work, WorkResult, decode_result, decode_step, encode
from engine.top_ids import TopIds
from engine.tree import TokenTree

IDS = st.integers(0, 2**31 - 1)
SEQS = st.integers(0, 2**53)
LISTS = st.lists(IDS, max_size=5)
FLOATS = st.floats(-100, 100)
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=4)
FP32 = hnp.arrays(np.float32, SHAPES, elements=st.floats(-1, 1, width=32))


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    n = draw(st.integers(0, 6))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    probe: list[bool] = []
    for parent in parents:
        probe.append(draw(st.booleans()) or (parent >= 0 and probe[parent]))
    names = draw(st.lists(st.text(max_size=5), min_size=1, max_size=3))
    return TokenTree(
        [draw(IDS) for _ in range(n)],
        parents,
        [draw(st.integers(0, len(names) - 1)) for _ in range(n)],
        probe,
        names,
        draw(st.none() | hnp.arrays(np.float32, (n, 3), elements=st.floats(0, 1, width=32))),
        draw(st.sets(st.integers(0, n - 1))) if n else (),
    )


@st.composite
def top_ids(draw: st.DrawFn) -> TopIds:
    nodes = sorted(draw(st.sets(st.integers(-1, 90), max_size=3)))
    shape = (len(nodes), draw(st.integers(0, 4)))
    ids = draw(hnp.arrays(np.int32, shape))
    logprobs = draw(st.none() | hnp.arrays(np.float32, shape, elements=st.floats(-9, 0, width=32)))
    return TopIds(np.array(nodes, np.int32), ids, logprobs)


PARAMS = st.builds(
    SamplingParams,
    max_tokens=IDS,
    min_tokens=IDS,
    temperature=FLOATS,
    top_p=FLOATS,
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 100),
    logit_bias=st.dictionaries(IDS, FLOATS, max_size=3),
    stop_ids=st.lists(IDS, max_size=3).map(tuple),
    stop=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
    verification=st.sampled_from(["coupled", "rejection"]),
)
NEEDS = st.builds(
    Needs,
    probe_top_k=IDS,
    hidden_layer=st.none() | st.integers(0, 90),
    heads=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=3).map(tuple),
)
WORK = st.builds(
    Work,
    seq=SEQS,
    n_cached=IDS,
    tokens=LISTS,
    tree=st.none() | trees(),
    keep=LISTS,
    new_blocks=LISTS,
    draw=st.booleans(),
    max_new=IDS,
)
STEPS = st.builds(
    Step,
    step_id=SEQS,
    work=st.lists(WORK, max_size=3),
    starts=st.lists(st.builds(SequenceStart, seq=SEQS, params=PARAMS, n_prompt=IDS, needs=NEEDS), max_size=2),
    ends=st.lists(SEQS, max_size=3),
)
LOGPROBS = st.builds(
    TokenLogprob, token_id=IDS, logprob=FLOATS, top=st.lists(st.tuples(IDS, FLOATS), max_size=2).map(tuple)
)
RESULTS = st.builds(
    StepResult,
    step_id=SEQS,
    results=st.lists(
        st.builds(
            WorkResult,
            seq=SEQS,
            tokens=LISTS,
            accepted=LISTS,
            logprobs=st.none() | st.lists(LOGPROBS, max_size=2),
            top_ids=top_ids(),
            prompt_top_ids=st.none() | hnp.arrays(np.int32, SHAPES),
            hidden=st.none() | FP32,
            attention=st.none() | FP32,
        ),
        max_size=3,
    ),
    seconds=FLOATS,
    error=st.text(max_size=9),
)


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
    if isinstance(value, list | tuple):
        return (type(value), *map(plain, value))
    return value


@given(STEPS)
def test_a_step_arrives_as_it_was_sent(step: Step) -> None:
    assert plain(decode_step(encode(step))) == plain(step)


@given(RESULTS)
def test_a_result_arrives_as_it_was_sent(result: StepResult) -> None:
    assert plain(decode_result(encode(result))) == plain(result)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.float32).reshape(2, 3).T, np.zeros((4, 4), np.float32)[::2]])
def test_views_arrive_whole(array: Any) -> None:
    result = StepResult(1, [WorkResult(2, hidden=array)], 0.0)
    arrived = decode_result(encode(result)).results[0].hidden
    assert arrived is not None
    assert np.array_equal(arrived, array)


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
        [[1], [-1], [0], [False], ["a"], [], ["<f8", [1, 1], b"12345678"]],  # a dtype nobody sends
        [[1], [-1], [0], [False], ["a"], [], ["<f4", [9, 9], b"1234"]],  # fewer bytes than the shape needs
    ],
)
def test_a_tree_that_cannot_be_is_refused(tree: list[Any]) -> None:
    work = {"seq": 1, "n_cached": 0, "tokens": [1], "tree": tree}
    with pytest.raises(msgspec.ValidationError):
        decode_step(msgspec.msgpack.encode({"step_id": 1, "work": [work]}))


def test_arrays_of_another_dtype_do_not_travel() -> None:
    wrong: Any = np.zeros((1, 1), dtype=np.float64)
    with pytest.raises(msgspec.ValidationError):
        decode_result(encode(StepResult(1, [WorkResult(2, hidden=wrong)], 0.0)))


def test_top_ids_read_like_a_mapping() -> None:
    top = TopIds(np.array([-1, 3], np.int32), np.array([[5, 6], [7, 8]], np.int32))
    assert dict(top) == {-1: [5, 6], 3: [7, 8]}
    assert (3 in top, 2 in top, 4 in top, len(top)) == (True, False, False, 2)
    assert TopIds.of(dict(top)) == top
    with pytest.raises(ValueError, match="do not fit together"):
        TopIds(np.zeros(1, np.int32), np.zeros((2, 2), np.int32))


@pytest.mark.parametrize("q", [None, np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)])
def test_a_draft_travels_with_its_result(q: Any) -> None:
    draft = Branch([4, 7], "eagle", [-1, -1], q=q, scores=None if q is not None else [0.5, 0.25])
    found = decode_result(encode(StepResult(1, [WorkResult(2, draft=draft, draft_seconds=0.5)], 1.0))).results[0]
    assert found.draft is not None
    assert (found.draft.tokens, found.draft.source, found.draft.parents) == ([4, 7], "eagle", [-1, -1])
    assert (found.draft.scores, found.draft_seconds) == (draft.scores, 0.5)
    assert np.array_equal(found.draft.q, q) if q is not None else found.draft.q is None


def test_every_field_of_needs_travels() -> None:
    needs = Needs(1, 2, 3, 4, ((5, 6), (7, 8)), True, 9, True)
    assert all(value for value in dataclasses.astuple(needs))
    step = Step(1, [], [SequenceStart(1, SamplingParams(), 3, needs)])
    assert decode_step(encode(step)).starts[0].needs == needs
