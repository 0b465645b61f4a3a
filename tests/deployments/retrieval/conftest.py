"""A store in a folder, and a clock that tests move."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval_store.service import backoff, interest, learner, reader


class ScriptedTime:
    """Stands for the module ``time``."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ScriptedTime:
    """Of learners, readers and their pauses; for tests without threads."""
    made = ScriptedTime()
    for module in (backoff, interest, learner, reader):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "store")
