"""Bytes on the channels to the router and between stages are a message or a decode error."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.pipeline.frames import OutcomeFrame, StepFrame, decode_outcome, decode_step_frame
from deployments.submission.protocol import decode_commands, decode_events

VALUES = st.recursive(st.none() | st.integers(-5, 300) | st.text(max_size=3), st.lists).map(msgspec.msgpack.encode)


@given(raw=st.binary(max_size=60) | VALUES)
@pytest.mark.parametrize("decode", [decode_commands, decode_events, decode_step_frame, decode_outcome])
def test_bytes_are_a_message_or_a_decode_error(decode: Callable[[bytes], object], raw: bytes) -> None:
    try:
        decoded = decode(raw)
    except msgspec.DecodeError:
        return
    assert decode(raw) == decoded
    assert isinstance(decoded, list | StepFrame | OutcomeFrame)
