"""A command that serves until it is told to end, for benchmarks that need one beside them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Self

STOP_S = 60


class Program:
    """A command in a process and session of its own, within a ``with`` block. It says on stdout that it is up, and ends
    when its stdin does.

    Args:
        name: of what it is, for messages.
        command: to run.
        environment: of the process; None: ours.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running command."""
        return self._started.pid

    @property
    def _started(self) -> subprocess.Popen[str]:
        assert self._process is not None, f"{self._name} has not been started"
        return self._process

    def is_up(self, line: str) -> bool:
        """Whether this line of stdout says so."""
        return bool(line)

    def __enter__(self) -> Self:
        """Return once the command is up.

        Raises:
            SystemExit: it ended before that; the message holds the end of what it wrote.
        """
        with tempfile.TemporaryFile("w+") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            try:
                if not any(map(self.is_up, iter(self._process.stdout.readline, ""))):
                    log.seek(0)
                    raise SystemExit(f"{self._name} did not start:\n{log.read()[-2000:]}")
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the command; one that is still there after a minute is killed."""
        process = self._started
        self.end()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            print(f"{self._name} did not end within {STOP_S} s and is killed", file=sys.stderr)
            process.kill()
            process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()

    def end(self) -> None:
        """Tell the command to end."""
        assert self._started.stdin is not None
        self._started.stdin.close()
