"""What tests of ``auto`` share."""

from __future__ import annotations

import pytest

from speculators.auto.sources import Clock


@pytest.fixture
def steady_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting takes what is assumed of it at first: no decision depends on how busy the machine is."""
    monkeypatch.setattr(Clock, "add", lambda *_: None)
