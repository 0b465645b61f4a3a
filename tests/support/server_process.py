"""A real ``spectra serve`` in a process of its own, and streams of it, for tests that do things to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import trustme

from benchmarks.support.server_process import free_port

READY_S = 400  # seconds; generous, for machines that do other things as well
JOIN_S = 240  # for a stream to end, with what a test does to it
STOP_S = 25  # less than Serve waits for a controller that is not there, and many times what a stop takes
FLAGS = ("--name", "tiny", "--kv-gib", "0.02", "--max-sequences", "4", "--max-waiting", "8", "--grace", "30")


class Server:
    """``spectra serve`` as a subprocess; with an authority it speaks HTTPS.

    ``program`` is another installation's command, started outside of the checkout.
    """

    def __init__(
        self,
        checkpoint: Path,
        folder: Path,
        flags: Sequence[str] = FLAGS,
        authority: trustme.CA | None = None,
        program: Path | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.folder = folder  # for all temporary files, Ray's too
        self.log = folder / "stderr.txt"
        self.port = free_port()
        command = [str(program or spectra()), "serve", "--model", str(checkpoint), "--port", str(self.port), *flags]
        self.trust = ssl.create_default_context()
        if authority is not None:
            authority.configure_trust(self.trust)
            self.renew_certificate(authority)
            command += ["--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem"]
        self._log = self.log.open("w")
        environment = os.environ | {"TMPDIR": str(folder)}
        environment.pop("RAY_AUTH_MODE", None)  # tests' own Ray has none; a server has
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            cwd=None if program is None else folder,
        )
        watchdog = threading.Timer(READY_S, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        watchdog.cancel()
        self.base = f"{'http' if authority is None else 'https'}://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.base, timeout=JOIN_S, verify=self.trust)
        of_openai = openai.DefaultHttpxClient(verify=self.trust)
        self.openai = openai.OpenAI(base_url=f"{self.base}/v1", api_key="none", max_retries=0, http_client=of_openai)

    def renew_certificate(self, authority: trustme.CA) -> None:
        """Write the files that a server with an authority was started with."""
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(f"{self.folder}/key.pem")
        for i, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(f"{self.folder}/cert.pem", append=i > 0)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": "tiny", "prompt": "Snow falls", **fields})

    def token_ids(self, **fields: Any) -> list[int]:
        answer = self.complete(return_token_ids=True, **fields)
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids

    def health(self) -> dict[str, Any]:
        """What /health says once a router has told its figures."""
        deadline = time.monotonic() + 240
        while True:
            answer: dict[str, Any] = self.http.get("/health").json()
            if "sessions" in answer:
                return answer
            assert time.monotonic() < deadline, answer

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
        """The oldest process with this name."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # workers come and go
                if name in " ".join(process.cmdline()):
                    return process
        raise AssertionError(f"no process is called {name}")

    def close(self) -> None:
        """End it at once: how a server stops, and that it leaves nothing, is asserted by tests that stop theirs."""
        self.http.close()
        self.openai.close()
        if self.process.poll() is None:
            left = self.processes()  # parents first, which would start others
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait()
            psutil.wait_procs(left, timeout=STOP_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def running(checkpoint: Path, flags: Sequence[str] = FLAGS, authority: trustme.CA | None = None) -> Iterator[Server]:
    """A server that has said it is ready."""
    with tempfile.TemporaryDirectory(prefix="sv-") as folder:  # pytest's own is too long a path for Ray's sockets
        server = Server(checkpoint, Path(folder), flags, authority)
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
        self.times: list[float] = []  # when tokens came, seconds
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
                    self.times.append(time.monotonic())

    def until(self, n_tokens: int) -> None:
        deadline = time.monotonic() + 240
        while len(self.token_ids) < n_tokens:
            assert time.monotonic() < deadline, f"only {len(self.token_ids)} tokens came"
            time.sleep(0.005)

    @property
    def longest_pause(self) -> float:
        """Seconds between two chunks."""
        return max(later - earlier for earlier, later in pairwise(self.times))

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(JOIN_S)
        assert not self._thread.is_alive(), "the stream hangs"

    def all_ids(self) -> list[int]:
        self.join()
        assert not self.errors
        assert self.ended_with == "data: [DONE]", (len(self.token_ids), self.errors, self.ended_with)
        return self.token_ids


def check_a_signal_to_all_processes_stops_the_server(server: Server, number: signal.Signals) -> None:
    """As from systemd or ``timeout`` (SIGTERM) or a terminal (SIGINT): the running stream ends, nothing is left."""
    stream = Stream(server, max_tokens=300, ignore_eos=True, temperature=0.8, seed=4)
    stream.until(5)
    processes = server.processes()
    assert len(processes) > 8
    group = os.getpgid(server.process.pid)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if number == signal.SIGTERM or os.getpgid(process.pid) == group:  # a terminal signals the group only
                process.send_signal(number)
    assert len(stream.all_ids()) == 300
    check_stopped(server, processes)


def check_stopped(server: Server, processes: list[psutil.Process]) -> None:
    """Assert that a server that was told to stop does so in good order and leaves no process and no folder."""
    assert server.process.wait(STOP_S) == 0
    assert psutil.wait_procs(processes, timeout=5)[1] == []
    assert list(server.folder.glob("spectra-*")) == []
    assert "Controller failed to shut down" not in server.log.read_text()
    assert "graceful_shutdown failed" not in server.log.read_text()


def spectra() -> str:
    """The installed command."""
    return str(Path(sys.executable).with_name("spectra"))
