"""Runs ``spectra chat`` in this process, with lines as its input."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from app.chat import screen
from tests.support.spectra_command import run_cli

CTRL_C = "\x03"
Chat = Callable[..., str]


class Lines(io.StringIO):
    """Standard input; a line of CTRL_C interrupts the program as it reads."""

    is_terminal = False

    def readline(self, size: int | None = -1, /) -> str:
        line = super().readline(-1)
        if line.strip() == CTRL_C:
            raise KeyboardInterrupt
        return line

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Chat:
    """``chat(url, lines, *flags)``: runs the command in this process and returns its output."""

    def run(url: str, lines: str, *flags: str, is_terminal: bool = False) -> str:
        stdin = Lines(lines)
        stdin.is_terminal = is_terminal
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(screen, "wants_colours", lambda out: is_terminal)
        ran = run_cli("chat", "--url", url, *flags)
        assert (ran.status, ran.err) == (0, "")
        return ran.out

    return run
