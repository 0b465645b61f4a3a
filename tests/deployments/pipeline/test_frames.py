"""Frames between stages are decoded as they were encoded, and the newest stage's time can be written into one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from deployments.pipeline.frames import activations_of, decode_frame, encode_frame, stamp, tensors_of
from engine.step import Step, decode_step

SECONDS = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@given(st.lists(SECONDS, max_size=12), SECONDS, st.integers(0, 2), st.text(max_size=20))
def test_a_frame_carries_its_step_tensors_and_the_stamped_time(
    before: list[float], own: float, n_tensors: int, error: str
) -> None:
    activations = None if error else activations_of([torch.ones(1, 3, 4), torch.ones(3, 2)][:n_tensors])
    step = Step(7, [], ends=[3])
    frame = encode_frame(step, activations, error, ("unix:a",), (*before, 0.0))
    stamp(frame, own)
    assert frame == encode_frame(step, activations, error, ("unix:a",), (*before, own))
    found = decode_frame(bytes(frame))
    assert (found.seconds, found.error) == ((*before, own), error)
    assert [head.shape for head in found.tensors] == [tuple(tensor.shape) for tensor in tensors_of(activations)]
    assert decode_step(found.step) == step
