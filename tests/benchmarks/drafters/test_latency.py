"""The benchmark of drafters' latency drafts with every method, and says what it measured."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.drafters.latency import METHODS, main


def test_every_method_drafts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["latency", "--repeats", "1", "--context", "20", "--batches", "2"])
    assert main() == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["method"] for row in rows] == list(METHODS)
    assert all(row["ms"] > 0 for row in rows)
    assert rows[0]["ratio"] == 1
