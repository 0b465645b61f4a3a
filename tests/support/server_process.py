"""``spectra serve`` in a process of its own, and streams of it."""

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import trustme

from benchmarks.support.server_process import free_port
from tests.support.waiting import LIMIT_S, wait_until

READY_S = 2 * LIMIT_S  # for Ray and the application to start
PATIENT = {"RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300", "RAY_health_check_timeout_ms": "300000"}
# On a slow machine, the expected wait of a queued request exceeds the default, and the server would refuse it.
LONG_WAIT = ("--max-wait", "1e6")
FLAGS = ("--name", "tiny", "--kv-gib", "0.02", "--max-sequences", "4", "--max-waiting", "8", "--grace", "30")


def spectra() -> str:
    return str(Path(sys.executable).with_name("spectra"))


class SpectraServer:
    """``spectra serve`` as a subprocess; with an authority it serves HTTPS.

    Temporary files, Ray's too, are in ``folder``. ``program`` is the command of another installation, started outside
    of the checkout. ``environment`` has further variables.
    """

    def __init__(
        self,
        checkpoint: Path,
        folder: Path,
        flags: Sequence[str] = FLAGS,
        authority: trustme.CA | None = None,
        program: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.checkpoint, self.folder, self.log = checkpoint, folder, folder / "stderr.txt"
        self.port = free_port()
        command = [str(program or spectra()), "serve", "--model", str(checkpoint), "--port", str(self.port)]
        command += [*LONG_WAIT, *flags]
        self.trust = ssl.create_default_context()
        if authority is not None:
            authority.configure_trust(self.trust)
            self.renew_certificate(authority)
            command += ["--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem"]
        variables = os.environ | {"TMPDIR": str(folder), **PATIENT, **(environment or {})}
        variables.pop("RAY_AUTH_MODE", None)  # the tests disable it for their own Ray
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=variables, cwd=program and folder
            )
        watchdog = threading.Timer(READY_S, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        watchdog.cancel()
        self.base = f"{'http' if authority is None else 'https'}://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.base, timeout=LIMIT_S, verify=self.trust)
        of_openai = openai.DefaultHttpxClient(verify=self.trust)
        self.openai = openai.OpenAI(base_url=f"{self.base}/v1", api_key="none", max_retries=0, http_client=of_openai)

    def renew_certificate(self, authority: trustme.CA) -> None:
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
        """Return /health once a router has reported its figures."""

        def reported() -> dict[str, Any]:
            answer: dict[str, Any] = self.http.get("/health").json()
            return answer if "sessions" in answer else {}

        return wait_until(reported)

    def settled(self) -> dict[str, Any]:
        """Return /health once no request runs; fail if a request has left something."""

        def idle() -> dict[str, Any]:
            health = self.health()
            return {} if health["sessions"] + health["running"] else health

        health = wait_until(idle, self.health)
        assert health["status"] == "ok"
        assert [health[name] for name in ("sessions", "running", "waiting", "speculator_states")] == [0, 0, 0, 0]
        assert health["free_blocks"] == health["blocks"]
        return health

    def processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def process_of(self, name: str) -> psutil.Process:
        """Return the oldest process with this name in its command line."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in " ".join(process.cmdline()):
                    return process
        raise AssertionError(f"no process is called {name}")

    def close(self) -> None:
        """Kill the server and its descendants; tests of the shutdown stop theirs before."""
        self.http.close()
        self.openai.close()
        if self.process.poll() is None:
            left = self.processes()  # parents first: they would start others
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait()
            psutil.wait_procs(left, timeout=LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def running(
    checkpoint: Path,
    flags: Sequence[str] = FLAGS,
    authority: trustme.CA | None = None,
    program: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SpectraServer]:
    """Run a server that has printed ``Ready``."""
    with tempfile.TemporaryDirectory(prefix="sv-") as folder:  # pytest's folders are too long for Ray's sockets
        server = SpectraServer(checkpoint, Path(folder), flags, authority, program, environment)
        try:
            assert server.first_line.startswith("Ready: "), server.log.read_text()
            yield server
        finally:
            server.close()


class StreamedCompletion:
    """A streamed completion, read in a thread."""

    def __init__(self, server: SpectraServer, **fields: Any) -> None:
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
        """Wait for so many tokens; fail if the stream ends before."""
        wait_until(
            lambda: len(self.token_ids) >= n_tokens or not self.is_running,
            lambda: f"only {len(self.token_ids)} tokens came",
        )
        assert len(self.token_ids) >= n_tokens, (len(self.token_ids), self.errors, self.ended_with)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the stream hangs"

    def all_ids(self) -> list[int]:
        """Return the tokens of a stream that has ended without an error."""
        self.join()
        assert not self.errors
        assert self.ended_with == "data: [DONE]", (len(self.token_ids), self.errors, self.ended_with)
        return self.token_ids


def check_a_signal_to_all_processes_stops_the_server(server: SpectraServer, number: signal.Signals) -> None:
    """Signal as systemd does (SIGTERM) or a terminal (SIGINT): the running stream ends whole, nothing is left."""
    stream = StreamedCompletion(server, max_tokens=300, ignore_eos=True, temperature=0.8, seed=4)
    stream.until(5)
    processes = server.processes()
    group = os.getpgid(server.process.pid)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if number == signal.SIGTERM or os.getpgid(process.pid) == group:  # a terminal signals its group alone
                process.send_signal(number)
    assert len(stream.all_ids()) == 300
    check_stopped(server, processes)


def check_stopped(server: SpectraServer, processes: list[psutil.Process]) -> None:
    """Assert that a server that was signalled ends with status 0 and leaves no process and no folder."""
    assert server.process.wait(LIMIT_S) == 0
    assert psutil.wait_procs(processes, timeout=LIMIT_S)[1] == []
    assert list(server.folder.glob("spectra-*")) == []
    log = server.log.read_text()
    assert "Controller failed to shut down" not in log
    assert "graceful_shutdown failed" not in log
