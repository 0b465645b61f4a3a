"""A real ``spectra serve`` in a process of its own, and streams of it, for tests that do things to it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

from app.serving.environment import free_port

READY_S, STOP_S = 180, 30  # seconds; generous, for machines that do other things as well
FLAGS = ("--name", "tiny", "--kv-gib", "0.02", "--max-sequences", "4", "--max-waiting", "8", "--grace", "8")


class Server:
    """``spectra serve`` as a subprocess."""

    def __init__(self, checkpoint: Path, folder: Path, flags: Sequence[str] = FLAGS) -> None:
        self.checkpoint = checkpoint
        self.folder = folder  # for all temporary files, Ray's too
        self.log = folder / "stderr.txt"
        self.port = free_port()
        command = [spectra(), "serve", "--model", str(checkpoint), "--port", str(self.port), *flags]
        self._log = self.log.open("w")
        environment = os.environ | {"TMPDIR": str(folder)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)
        watchdog = threading.Timer(READY_S, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        watchdog.cancel()
        self.base = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.base, timeout=60)
        self.openai = openai.OpenAI(base_url=f"{self.base}/v1", api_key="none", max_retries=0)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": "tiny", "prompt": "Snow falls", **fields})

    def token_ids(self, **fields: Any) -> list[int]:
        answer = self.complete(return_token_ids=True, **fields)
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.http.get("/health").json()
        return answer

    def settled(self, within: float = 30.0) -> dict[str, Any]:
        """Health once nothing runs any more; fails if something is left over."""
        deadline = time.monotonic() + within
        while (health := self.health())["sessions"] + health["running"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert health["status"] == "ok"
        assert [health[name] for name in ("sessions", "running", "waiting", "speculator_states")] == [0, 0, 0, 0]
        assert health["free_blocks"] == health["blocks"]
        return health

    def processes(self) -> list[psutil.Process]:
        """The server and everything it started."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def process_of(self, name: str) -> psutil.Process:
        return next(process for process in self.processes() if name in " ".join(process.cmdline()))

    def close(self) -> None:
        self.http.close()
        self.openai.close()
        if self.process.poll() is None:
            left = self.processes()
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def running(checkpoint: Path, flags: Sequence[str] = FLAGS) -> Iterator[Server]:
    """A server that has said it is ready."""
    with tempfile.TemporaryDirectory(prefix="sv-") as folder:  # pytest's own is too long a path for Ray's sockets
        server = Server(checkpoint, Path(folder), flags)
        try:
            assert server.first_line.startswith("Ready: "), server.log.read_text()
            yield server
        finally:
            server.close()


class Stream:
    """A streamed completion, read in a thread."""

    def __init__(self, server: Server, **fields: Any) -> None:
        self._server = server
        self._fields = {"model": "tiny", "prompt": "Snow falls", "stream": True, "return_token_ids": True, **fields}
        self.token_ids: list[int] = []
        self.errors: list[Any] = []
        self.ended_with = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._server.http.stream("POST", "/v1/completions", json=self._fields) as answer:
            for line in answer.iter_lines():
                self.ended_with = line or self.ended_with
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    self.errors += [chunk["error"]] if "error" in chunk else []
                    self.token_ids += chunk["choices"][0]["token_ids"] if chunk.get("choices") else []

    def until(self, n_tokens: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.token_ids) < n_tokens:
            assert time.monotonic() < deadline, f"only {len(self.token_ids)} tokens came"
            time.sleep(0.005)

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive(), "the stream hangs"

    def all_ids(self) -> list[int]:
        self.join()
        assert not self.errors
        assert self.ended_with == "data: [DONE]"
        return self.token_ids


def spectra() -> str:
    """The installed command."""
    return str(Path(sys.executable).with_name("spectra"))
