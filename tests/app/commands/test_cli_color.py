"""``spectra generate --color``: the same text, each token in the colour of the source that drafted it."""

from __future__ import annotations

import re
from pathlib import Path

from app.reporting.colours import PLAIN, coloured
from tests.support.spectra_command import generated, run_here

ESCAPE = re.compile(r"\x1b\[(\d+)m")
FLAGS = ("--prompt", "the quick brown fox and the quick brown fox", "--raw", "--max-new-tokens", 40)
METHOD = ("--method", "pld+token-recycling", "--temperature", 0.5, "--seed", 3)


def test_colours_change_no_text_and_the_legend_counts_accepted_tokens(tiny_checkpoint: Path) -> None:
    [line] = generated(tiny_checkpoint, *FLAGS, *METHOD)
    shown = run_here("generate", "--model", tiny_checkpoint, *FLAGS, *METHOD, "--color").out
    text, _, figures = shown.rpartition("\n[")
    text, _, legend = text.rpartition("\n")
    assert ESCAPE.sub("", text) == line["text"]
    assert figures.startswith(f"{len(line['token_ids'])} tokens in {line['target_forwards']} forwards")
    counts = dict(entry.rsplit(" ", 1) for entry in ESCAPE.sub("", legend).split(", "))
    for name, source in line["by_source"].items():
        assert counts.get(name, "0") == str(source["accepted"])
    in_text, in_legend = ({*ESCAPE.findall(part)} for part in (text, legend))
    assert in_text == in_legend
    assert len(in_legend) > 1


def test_a_colour_ends_at_the_end_of_a_line_and_the_targets_own_tokens_have_none() -> None:
    text, legend = coloured([("one\n\ntwo", "a"), (" three", None), ("!", "b"), ("", None)]).rsplit("\n", 1)
    assert text == f"\x1b[36mone{PLAIN}\n\n\x1b[36mtwo{PLAIN} three\x1b[33m!{PLAIN}"
    assert legend == f"\x1b[36ma 1{PLAIN}, \x1b[33mb 1{PLAIN}, the target's own 1"
