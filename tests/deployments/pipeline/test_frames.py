"""Frames between stages are decoded as they were encoded, and the newest stage's time can be written into one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from deployments.pipeline.frames import (
    OutcomeFrame,
    TensorHeader,
    activations_of,
    decode_outcome,
    decode_step_frame,
    encode_outcome,
    encode_step_frame,
    stamp,
    tensors_of,
)
from engine.step import Step, decode_step, encode

SECONDS = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
HEADERS = st.lists(
    st.builds(
        TensorHeader,
        st.sampled_from(["float32", "bfloat16", "float16"]),
        st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple),
    ),
    max_size=3,
).map(tuple)


@given(HEADERS)
def test_a_frame_carries_its_step_and_the_announced_tensors(headers: tuple[TensorHeader, ...]) -> None:
    step = Step(7, [], ends=[3])
    frame = encode_step_frame(step, headers)
    assert frame == encode_step_frame(encode(step), headers)
    found = decode_step_frame(frame)
    assert (decode_step(found.step), found.tensors) == (step, headers)


@given(HEADERS, st.booleans(), st.lists(SECONDS, max_size=12), SECONDS, st.text(max_size=20))
def test_an_outcome_carries_the_stamped_time(
    headers: tuple[TensorHeader, ...], is_fused: bool, before: list[float], own: float, error: str
) -> None:
    fields = (headers, is_fused, error, ("unix:a",))
    frame = encode_outcome(OutcomeFrame(*fields, (*before, 0.0)))
    stamp(frame, own)
    assert decode_outcome(bytes(frame)) == OutcomeFrame(*fields, (*before, own))


def test_activations_are_taken_apart_and_put_together() -> None:
    parts = [torch.ones(1, 3, 4), torch.ones(3, 2), torch.ones(1, 3, 5)]
    for n, is_fused in ((1, False), (2, False), (2, True), (3, True)):
        activations = activations_of(parts[:n], is_fused)
        assert activations is not None
        assert tensors_of(activations) == parts[:n]
    assert activations_of([]) is None
