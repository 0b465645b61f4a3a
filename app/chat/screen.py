"""Writes a conversation to a terminal, with or without colours."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TextIO

from app.chat.answers import ChatAnswer
from app.reporting.colours import PLAIN, Palette
from app.reporting.report import columns, number

DIM = "\x1b[2m"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline: a terminal obeys some of them


class Screen:
    """Writes answers as they come; with ``colours`` each token has the colour of its source."""

    def __init__(self, out: TextIO, colours: bool) -> None:
        self._out, self._has_colours = out, colours
        self._palette = Palette(enabled=colours)

    def line(self, text: str) -> None:
        """Write a line, control characters as their codes."""
        self._write(f"{printable(text)}\n")

    def piece(self, text: str, source: str | None) -> None:
        """Write text that has just come, control characters of the model or the server as their codes."""
        text, source = printable(text), None if source is None else printable(source)
        self._write(text if source is None else self._palette.painted(source, text))

    def connection(self, seconds: float | None) -> None:
        """Write that the connection is lost (None), or that the answer continues after some seconds.

        An output without colours has it in the figures alone, so that the text stays whole.
        """
        if self._has_colours:
            text = "\n(connection lost)" if seconds is None else f" (reconnected after {seconds:.1f} s)\n"
            self._write(f"{DIM}{text}{PLAIN}")

    def end(self, answer: ChatAnswer, seed: int, was_stopped: bool) -> None:
        """Write the legend and the figures of an answer, or its failure."""
        self.line("" if answer.text else "(no text)")
        if answer.failure is not None:
            self.line(f"[{answer.failure.kind}: {answer.failure.message}]")
            return
        drafted = {printable(name): n for name, n in answer.drafted.items() if name is not None}
        if drafted:
            self._write(f"{self._palette.legend(drafted, answer.drafted[None])}\n")
        self.line(f"[{'stopped, ' if was_stopped else ''}{', '.join(summary(answer))}, seed {seed}]")

    def _write(self, text: str) -> None:
        """Write text; raises EOFError from the OSError of a terminal or pipe that is gone."""
        try:
            self._out.write(text)
            self._out.flush()
        except OSError as error:  # would pass for a lost connection to the server
            raise EOFError from error


def printable(text: str) -> str:
    """``text`` with control characters as their codes, such as ``\\x1b``."""
    return CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def summary(answer: ChatAnswer) -> list[str]:
    """Figures of an answer, those that are known."""
    said = [] if answer.tokens is None else [f"{answer.tokens} tokens"]
    if answer.forwards is not None:
        said.append(f"{answer.forwards} forwards")
        if answer.forwards and answer.tokens:
            said.append(f"{(answer.tokens - 1) / answer.forwards:.2f} tokens per forward")
    lost = [f"reconnected after {answer.lost_seconds:.1f} s"] if answer.lost_seconds else []
    return [*said, f"{answer.seconds:.2f} s", *lost]


def race_table(methods: Sequence[str], answers: Sequence[ChatAnswer]) -> str:
    """A line for each method, and whether their texts are the same."""
    rows = [["method", "tokens", "forwards", "seconds"]]
    for method, answer in zip(methods, answers, strict=True):
        rows.append([method, number(answer.tokens, 0), number(answer.forwards, 0), number(answer.seconds)])
    if any(answer.failure is not None for answer in answers):
        verdict = "an answer is incomplete: texts were not compared"
    elif len({answer.text for answer in answers}) == 1:
        verdict = "texts are identical"
    else:
        verdict = "TEXTS DIFFER"
    return f"{columns(rows, (0,))}\n{verdict}"


def wants_colours(out: TextIO) -> bool:
    """Whether ``out`` is a terminal, and neither NO_COLOR (no-color.org) nor TERM=dumb is set."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
