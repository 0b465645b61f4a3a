"""Ids of events: which ones are read, and which events come after them."""

from __future__ import annotations

import pytest

from app.api.answers.positions import read_positions
from engine.errors import RequestError


@pytest.mark.parametrize(
    ("given", "n", "positions"),
    [
        ("", 2, [(0, 0), (0, 0)]),
        ("0", 2, [(0, 0), (0, 0)]),
        ("17", 1, [(17, 0)]),
        ("16.1", 1, [(16, 1)]),
        ("17,12.3", 2, [(17, 0), (12, 3)]),
    ],
)
def test_ids_of_events_are_read(given: str, n: int, positions: list[tuple[int, int]]) -> None:
    assert read_positions(given, n, "after") == positions


@pytest.mark.parametrize(
    "given", ["17", "17,", "17,1,2", "-1,2", "1,2.", "1.5.2,1", "½,1", "1e3,1", "1" * 10 + ",1", "x" * 9999]
)
def test_anything_else_is_refused_by_name(given: str) -> None:
    with pytest.raises(
        RequestError, match=r"Last-Event-ID is .*; it must be the id of an event of this stream"
    ) as refused:
        read_positions(given, 2, "Last-Event-ID")
    assert len(str(refused.value)) < 200
