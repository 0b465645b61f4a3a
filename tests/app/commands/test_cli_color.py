"""``spectra generate --color``: the same text, each token in the colour of the source that drafted it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from app.reporting.colours import PLAIN, coloured
from tests.app.commands.conftest import Lines

ESCAPE = re.compile(r"\x1b\[(\d+)m")
FLAGS = ("--prompt", "the quick brown fox and the quick brown fox", "--raw", "--max-new-tokens", "60")
METHOD = ("--method", "pld+token-recycling", "--temperature", "0.5", "--seed", "3")


def test_colours_change_no_text_and_the_legend_counts_accepted_tokens(
    tiny_checkpoint: Path, spectra: Callable[..., Lines], capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = spectra(*FLAGS, *METHOD)
    assert main(["generate", "--model", str(tiny_checkpoint), *FLAGS, *METHOD, "--color"]) == 0
    shown = capsys.readouterr().out
    text, _, figures = shown.rpartition("\n[")
    text, _, legend = text.rpartition("\n")
    assert ESCAPE.sub("", text) == line["text"]
    assert figures.startswith(f"{len(line['token_ids'])} tokens in {line['target_forwards']} forwards")
    told = dict(entry.rsplit(" ", 1) for entry in ESCAPE.sub("", legend).split(", "))
    for name, counts in line["by_source"].items():
        assert told.get(name, "0") == str(counts["accepted"])
    in_text, in_legend = ({*ESCAPE.findall(part)} for part in (text, legend))
    assert in_text == in_legend
    assert len(in_legend) > 1


def test_a_colour_ends_with_its_line_and_the_targets_own_tokens_have_none() -> None:
    text, legend = coloured([("one\n\ntwo", "a"), (" three", None), ("!", "b"), ("", None)]).rsplit("\n", 1)
    assert text == f"\x1b[36mone{PLAIN}\n\n\x1b[36mtwo{PLAIN} three\x1b[33m!{PLAIN}"
    assert legend == f"\x1b[36ma 1{PLAIN}, \x1b[33mb 1{PLAIN}, the target's own 1"


def test_colours_are_not_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", *FLAGS, "--json", "--color"])
    assert "not allowed with" in capsys.readouterr().err
