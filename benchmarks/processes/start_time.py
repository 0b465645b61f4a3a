"""Where the seconds of a start of ``spectra serve`` go: by phase, and by process.

    python -m benchmarks.processes.start_time
    python -m benchmarks.processes.start_time --model DIRECTORY --runs 3 --flags "--ingress-replicas 2"

The first start has an empty cache: it converts weights, compiles, indexes texts and measures step times. The other
starts share its cache. Phases overlap: a phase lasts from one line of the server's progress to the next, and its CPU
seconds are those of all processes meanwhile. CPU time is user and system time, also of processes that have ended.
Memory is resident memory at the end; pages that processes share count in each. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
import psutil

from app.reporting.report import as_line
from benchmarks.support.reporting import table
from benchmarks.support.server_process import free_port

PROGRESS = re.compile(r" *\d+\.\d s  (.*)")
SAMPLE_S = 0.5  # between two looks at the processes; what one takes after the last look before its end is missed
SHOWN_S = 0.3  # processes with less CPU time are summed up as others
PHASES = {"phase": "from", "wall_s": "wall, s", "cpu_s": "CPU, s"}
PROCESSES = {"process": "process", "cpu_s": "CPU, s", "memory_mib": "memory, MiB"}


@dataclass
class MeasuredStart:
    """One start: phases ``(first line, wall seconds, CPU seconds)``, and CPU seconds and MiB by process."""

    ready_s: float = 0.0
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    processes: dict[str, tuple[float, float]] = field(default_factory=dict)


class ProcessTree:
    """CPU time of a process and of all that it starts, sampled in a thread within a ``with`` block."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._seen: dict[psutil.Process, tuple[str, float, float]] = {}  # name, CPU seconds, MiB
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> ProcessTree:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.cpu_seconds()

    def cpu_seconds(self) -> float:
        """CPU seconds of all processes until now."""
        with self._lock:
            for process in (self._root, *self._root.children(recursive=True)):
                with contextlib.suppress(psutil.Error, IndexError), process.oneshot():
                    times = process.cpu_times()
                    mib = process.memory_info().rss / (1 << 20)
                    self._seen[process] = process_name(process.cmdline()), times.user + times.system, mib
            return sum(seconds for _, seconds, _ in self._seen.values())

    def by_name(self) -> dict[str, tuple[float, float]]:
        """CPU seconds and MiB by name of process; small ones together."""
        found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for process, (name, seconds, mib) in self._seen.items():
            for key in (name if seconds >= SHOWN_S else "others", "all"):
                found[key][0] += seconds
                found[key][1] += mib if process.is_running() else 0.0
        return {name: (seconds, mib) for name, (seconds, mib) in found.items()}


def process_name(command: Sequence[str]) -> str:
    """Return the table's name for a process with this command line."""
    title = command[0].strip()
    if title.startswith("ray::"):
        return title.removeprefix("ray::").rpartition(":")[2].partition(".")[0]
    if any("compile_kernels" in part for part in command):
        return "compiling"
    scripts = [Path(part).name for part in command if part.endswith(".py")]
    return "spectra serve" if "app.cli" in command else next(iter(scripts), Path(title).name)


def measure_start(model: str, flags: Sequence[str], cache: str) -> MeasuredStart:
    """Start a server with the cache folder ``cache``, send one request, and end it.

    Raises:
        SystemExit: it did not start.
    """
    port, found = free_port(), MeasuredStart()
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "serve", "--model", model, *flags, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": cache},
        start_new_session=True,
    )
    try:
        with ProcessTree(process.pid) as tree:
            marks = [("imports of the command", began, 0.0)]
            for line in _lines(process):
                text = PROGRESS.match(line)
                if text or line.startswith("Ready"):
                    name = text[1].partition(";")[0] if text else "first request"
                    marks.append((name, time.monotonic(), tree.cpu_seconds()))
                if line.startswith("Ready"):
                    break
            else:
                raise SystemExit("the server did not start")
            found.ready_s = marks[-1][1] - began
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1/", timeout=60, trust_env=False) as client:
                name = client.get("models").json()["data"][0]["id"]
                body = {"model": name, "prompt": "Hello", "max_tokens": 16, "temperature": 0}
                client.post("completions", json=body).raise_for_status()
            marks.append(("", time.monotonic(), tree.cpu_seconds()))
        for (name, start, before), (_, end, after) in pairwise(marks):
            found.phases.append((name, end - start, after - before))
        found.processes = tree.by_name()
    finally:
        process.terminate()
        process.communicate(timeout=90)
    return found


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", file=sys.stderr, flush=True)
        yield line


def report(title: str, starts: Sequence[MeasuredStart]) -> dict[str, object]:
    """Print the phases of the last start and the processes' medians of all; return both."""
    ready = [round(one.ready_s, 1) for one in starts]
    phases = [
        {"phase": name, "wall_s": round(wall, 1), "cpu_s": round(cpu, 1)} for name, wall, cpu in starts[-1].phases
    ]
    processes = []
    last = starts[-1].processes
    for name in sorted(last, key=lambda name: -last[name][0]):
        cpu, mib = (
            statistics.median(one.processes[name][i] for one in starts if name in one.processes) for i in (0, 1)
        )
        processes.append({"process": name, "cpu_s": round(cpu, 1), "memory_mib": round(mib)})
    print(f"{title}: ready after {statistics.median(ready):.1f} s ({', '.join(map(str, ready))})\n")
    print(table(PHASES, phases) + "\n")
    print(table(PROCESSES, processes) + "\n")
    return {"ready_s": ready, "phases": phases, "processes": processes}


def main(arguments: list[str] | None = None) -> None:
    """Start a server some times, and print tables."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.processes.start_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="demo", help="checkpoint directory (default: demo)")
    parser.add_argument("--flags", default="", help='more flags of spectra serve, as in "--stages 2"')
    parser.add_argument("--runs", type=int, default=3, help="starts after the first one (default: 3)")
    parser.add_argument("--cache", help="cache folder of all starts (default: a new one, so that the first is cold)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        cache = given.cache or temporary
        starts = [measure_start(given.model, shlex.split(given.flags), cache) for _ in range(1 + given.runs)]
    document = {"first": report("First start", starts[:1])}
    if starts[1:]:
        document["later"] = report("Later starts", starts[1:])
    print(as_line(document))


if __name__ == "__main__":
    main()
