"""Commands of tools print what their tables promise."""

from __future__ import annotations

import pytest

from tools import sizing
from tools.shapes import SHAPES


def test_the_sizing_table_has_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    sizing.main([])
    table = capsys.readouterr().out
    assert all(name in table for name in SHAPES)
