"""``spectra chat`` with the demo model: tokens in the colours of their sources, and races between methods."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.server_process import Server
from tests.support.terminal import Terminal

pytestmark = pytest.mark.cluster

ESCAPE = re.compile(r"\x1b\[\d*m")
QUESTION = "Write a story about a panda named Anna and a notebook."


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "NO_COLOR"}


def answered(server: Server, installed: Path, lines: list[str], variables: dict[str, str]) -> list[str]:
    """What the terminal shows behind each line that is typed."""
    found = []
    with Terminal([str(installed), "chat", "--url", server.base, "--seed", "3"], variables) as terminal:
        terminal.until("> ")
        for line in lines:
            terminal.type(line + "\r")
            terminal.until("\n")  # the echo
            found.append(terminal.until("\n> ").removesuffix("\n> "))
    return found


def test_tokens_are_coloured_by_source_and_the_text_is_the_server_s(server: Server, installed: Path) -> None:
    lines = ["/method suffix+token-recycling", QUESTION]
    shown = answered(server, installed, lines, environment())[1]
    text, legend, figures = shown.rsplit("\n", 2)
    answer = server.openai.chat.completions.create(
        model="demo", seed=3, messages=[{"role": "user", "content": QUESTION}]
    )
    assert ESCAPE.sub("", text).rstrip("\n") == (answer.choices[0].message.content or "").rstrip("\n")
    assert {*ESCAPE.findall(text)} == {*ESCAPE.findall(legend)}
    assert len({*ESCAPE.findall(text)}) >= 2
    told = dict(entry.rsplit(" ", 1) for entry in ESCAPE.sub("", legend).split(", "))
    assert told.keys() >= {"token-recycling", "the target's own"}
    assert figures.endswith(", seed 3]")


def test_a_race_says_that_texts_are_the_same_in_fewer_forwards(server: Server, installed: Path) -> None:
    lines = [f"/race autoregressive suffix+token-recycling {QUESTION}"]
    shown = answered(server, installed, lines, environment() | {"NO_COLOR": "1"})[0]
    assert "\x1b" not in shown
    assert shown.endswith("texts are identical")
    forwards = [int(row.split()[2]) for row in shown.splitlines()[-3:-1]]
    assert forwards[1] < forwards[0] * 0.7
