"""Time of ``auto`` passes only where a test says so: no decision depends on how busy the machine is."""

from __future__ import annotations

import pytest

from speculators.auto.sources import Clock


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    for module in ("tiers", "speculator", "hindsight"):
        monkeypatch.setattr(f"speculators.auto.{module}.time", fake)
    return fake


@pytest.fixture
def steady_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting takes the time that is assumed at first."""
    monkeypatch.setattr(Clock, "add", lambda *_: None)
