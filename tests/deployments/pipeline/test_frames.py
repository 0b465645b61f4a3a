"""Frames between stages: what goes in comes out, and the newest stage's time can be written into an encoded one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deployments.pipeline.frames import activations_of, decode_frame, encode_frame, stamp, tensors_of
from engine.stage.base import Activations
from engine.step import Step, decode_step

SECONDS = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@given(st.lists(SECONDS, max_size=12), SECONDS, st.booleans(), st.text(max_size=20))
def test_a_stamped_frame_is_the_one_with_that_time(before: list[float], own: float, has_rows: bool, error: str) -> None:
    activations = Activations(torch.ones(1, 3, 4)) if has_rows else None
    frame = encode_frame(Step(7, []), activations, error, ("unix:a",), (*before, 0.0))
    stamp(frame, own)
    assert frame == encode_frame(Step(7, []), activations, error, ("unix:a",), (*before, own))
    assert decode_frame(bytes(frame)).seconds == (*before, own)


def test_a_frame_without_times_is_not_stamped() -> None:
    with pytest.raises(AssertionError, match="no times"):
        stamp(encode_frame(Step(7, []), None), 1.0)


@pytest.mark.parametrize("n_tensors", [0, 1, 2])
def test_a_frame_announces_its_tensors_and_carries_its_step(n_tensors: int) -> None:
    tensors = [torch.ones(1, 3, 4), torch.ones(3, 2)][:n_tensors]
    activations = activations_of(tensors)
    found = decode_frame(bytes(encode_frame(Step(7, [], ends=[3]), activations)))
    assert [head.shape for head in found.tensors] == [tuple(tensor.shape) for tensor in tensors_of(activations)]
    assert decode_step(found.step) == Step(7, [], ends=[3])
