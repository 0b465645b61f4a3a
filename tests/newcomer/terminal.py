"""A program at a pseudo terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Mapping, Sequence

from tests.support.waiting import wait_until


class Terminal:
    """Runs a command at a terminal of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=_control,
        )
        os.close(theirs)
        self._seen = b""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, text: str) -> str:
        """Wait for ``text``; returns the output up to and including it, since the last call."""
        shown = text.replace("\n", "\r\n").encode()
        wait_until(lambda: self._shows(shown), lambda: f"{text!r} did not appear: {self._seen!r}")
        before, _, self._seen = self._seen.partition(shown)
        return (before + shown).decode().replace("\r\n", "\n")

    def _shows(self, shown: bytes) -> bool:
        while shown not in self._seen and select.select([self._ours], [], [], 0)[0]:
            try:
                self._seen += os.read(self._ours, 1 << 16)
            except OSError as error:
                raise AssertionError(f"the program has ended: {self._seen!r}") from error
        return shown in self._seen

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def _control() -> None:
    """Make the terminal the controlling one, and do not ignore SIGINT as background processes of a shell do."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
