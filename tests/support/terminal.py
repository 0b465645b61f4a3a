"""A program at a pseudo terminal, as a person has it before them."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

import psutil

from tests.support.redis_server import wait_until

WAIT_S = 400.0


class Terminal:
    """Runs a command; what it writes is read by ``until``."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**environment, "TERM": "xterm"}
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=_own,
        )
        os.close(theirs)
        self._seen = ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def until_it_waits(self) -> None:
        """Behind a prompt, until the program waits for a key: Python sees a Ctrl-C before that with the next key."""
        program = psutil.Process(self.process.pid)
        wait_until(lambda: program.status() == psutil.STATUS_SLEEPING, "a program that waits for a key", WAIT_S)

    def until(self, wanted: str) -> str:
        """What was written up to and with ``wanted``, since the last call."""
        deadline = time.monotonic() + WAIT_S
        while wanted not in self._seen:
            assert time.monotonic() < deadline, f"{wanted!r} did not come: {self._seen!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                self._seen += self._read()
        before, _, self._seen = self._seen.partition(wanted)
        return before + wanted

    def _read(self) -> str:
        try:
            return os.read(self._ours, 1 << 16).decode(errors="replace").replace("\r\n", "\n")
        except OSError as error:  # the program has ended
            raise AssertionError(f"the program has ended: {self._seen!r}") from error

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def _own() -> None:
    """Make the terminal the one that controls the program, whose keys become its signals.

    What a shell starts in the background ignores SIGINT, and so would the tests' own children.
    """
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
