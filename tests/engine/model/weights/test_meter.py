"""A long load says how far it is, and every load what it read."""

from __future__ import annotations

import pytest

from engine.model.weights import meter
from engine.model.weights.meter import Meter


def test_the_log_has_bytes_share_and_rate(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: now[0])
    made = Meter("layers 0 to 3")
    with caplog.at_level("INFO"), made.reading(4 << 30):
        for _ in range(4):
            now[0] += 3
            made.add(1 << 30)
    assert [record.getMessage() for record in caplog.records] == [
        "layers 0 to 3: 2.00 GiB of 4.00 GiB, 50% read, 341.3 MiB/s",
        "layers 0 to 3: 4.00 GiB of 4.00 GiB, 100% read, 341.3 MiB/s",
        "layers 0 to 3: 4.00 GiB read in 12.0 s, 341.3 MiB/s",
    ]
    with made.reading(10 << 20):
        made.add(10 << 20)
    assert (made.n_bytes, made.total, made.seconds) == ((4 << 30) + (10 << 20), (4 << 30) + (10 << 20), 12.0)


def test_a_load_that_fails_says_nothing_of_its_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), pytest.raises(OSError), Meter().reading(10):
        raise OSError
    assert not caplog.records
