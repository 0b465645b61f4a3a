"""How long ``spectra serve`` takes until it is ready, and what each of its processes has taken by then.

    python -m benchmarks.processes.start_time
    python -m benchmarks.processes.start_time --runs 3 --flags "--ingress-replicas 2"

CPU time is user and system time; memory is what is resident, pages that processes share counted in each. Processes that
have ended by then are not seen. Shown is the median of the runs; the last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil

from app.reporting.report import as_line
from benchmarks.support.reporting import table
from benchmarks.support.server_process import ServerProcess

SHOWN_S = 0.3  # processes that took less are summed up as one
COLUMNS = {"process": "process", "cpu_s": "CPU, s", "memory_mib": "memory, MiB"}
OTHERS, ALL = "others", "all"

Taken = dict[str, tuple[float, float]]  # by process: CPU seconds, MiB


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.processes.start_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="demo", help="checkpoint directory (default: demo)")
    parser.add_argument("--flags", default="", help='more of spectra serve, as in "--stages 2"')
    parser.add_argument("--runs", type=int, default=3, help="starts (default: 3)")
    return parser.parse_args(arguments)


def name_of(command: list[str]) -> str:
    """What a process is called in the table, of its command line."""
    title = command[0].strip()
    if title.startswith("ray::"):
        return title.removeprefix("ray::").rpartition(":")[2].partition(".")[0]
    scripts = [Path(part).name for part in command if part.endswith(".py")]
    return "spectra serve" if "app.cli" in command else next(iter(scripts), Path(title).name)


def taken_by(pid: int) -> Taken:
    """What a process and all that it has started have taken, by name; small ones together."""
    parent = psutil.Process(pid)
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for process in (parent, *parent.children(recursive=True)):
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info().rss / (1 << 20)
            seconds = times.user + times.system
            name = name_of(process.cmdline()) if seconds >= SHOWN_S else OTHERS
        for key in (name, ALL):
            found[key][0] += seconds
            found[key][1] += memory
    return {name: (seconds, memory) for name, (seconds, memory) in found.items()}


def main(arguments: list[str] | None = None) -> None:
    """Start a server some times, and print a table."""
    asked = parsed(arguments)
    ready: list[float] = []
    runs: list[Taken] = []
    for _ in range(asked.runs):
        began = time.monotonic()
        with ServerProcess(asked.model, shlex.split(asked.flags)) as server:
            ready.append(time.monotonic() - began)
            runs.append(taken_by(server.pid))
        print(f"ready after {ready[-1]:.1f} s", file=sys.stderr, flush=True)
    rows = []
    for name in sorted(runs[-1], key=lambda name: -runs[-1][name][0]):
        medians = [statistics.median(run[name][i] for run in runs if name in run) for i in (0, 1)]
        rows.append({"process": name, "cpu_s": round(medians[0], 1), "memory_mib": round(medians[1])})
    print(f"Ready after {statistics.median(ready):.1f} s ({', '.join(f'{one:.1f}' for one in ready)}).\n")
    print(table(COLUMNS, rows) + "\n")
    print(as_line({"ready_s": ready, "processes": rows}))


if __name__ == "__main__":
    main()
