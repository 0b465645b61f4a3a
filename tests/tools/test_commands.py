"""Commands of tools run and print what their tables promise."""

from __future__ import annotations

import json

import pytest

from tools import sizing
from tools.demo_world import generate
from tools.demo_world.mix import conversation
from tools.shapes import SHAPES


def test_the_sizing_table_has_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    sizing.main([])
    table = capsys.readouterr().out
    assert all(name in table for name in SHAPES)


def test_the_generator_prints_the_conversations_that_training_sees(capsys: pytest.CaptureFixture[str]) -> None:
    generate.main(["-n", "3", "--first", "7", "--seed", "2"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["messages"] for line in lines] == [list(conversation(2, i).messages) for i in (7, 8, 9)]
