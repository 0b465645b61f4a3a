"""Do good streams notice malformed and extreme requests, and is anything left over?

Starts ``spectra serve`` with API keys; every client has one. --streams clients repeat questions whose undisturbed
answers are known: first alone, then alongside --requests hostile requests, --rate a second. Those have fields of wrong
types and sizes (hypothesis, from the schemas), damaged bytes, deep nesting, odd headers, methods and paths, slow or
broken uploads, or clients that leave. --seed repeats them; a failure is printed with its request. The default takes
five minutes.

Exit status 1: an answer was 5xx or not in OpenAI's form, a 400 to a JSON object names no field, or a good text changed
or failed. Or sessions, states, blocks or descriptors are left over, a part's memory grew by more than 64 MiB in the
second half, or the good streams' p99 pause is above twice the one without hostile requests. The last line of stdout is
one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil

from benchmarks.resilience.hostile_clients import HostileOutcome, send_all
from benchmarks.resilience.hostile_requests import HostileRequest, build_requests
from benchmarks.resilience.observation import find_leaks, measure_memory, sum_by_part
from benchmarks.resilience.streams import ClientStreams, find_pauses
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.server_process import ServerProcess

Checkpoint: TypeAlias = tuple[float, dict[str, float]]  # monotonic seconds, part -> MiB

LEAK_TIMEOUT_S = 120.0  # longer than HTTP connections are kept open for the next request
N_WARM_UP = 200  # requests that fill caches
MAX_TOKENS = 200  # of a good answer
MAX_P99_RATIO, MAX_GROWTH_MIB, MAX_NEW_DESCRIPTORS = 2.0, 64.0, 2.0
COLUMNS = {"phase": "phase", "answers": "good answers", "median": "pause ms p50", "p99": "p99", "longest": "longest"}
MAX_SHOWN = 20  # failures
APPLICATION_PARTS = ("stages", "router", "ingress", "target")  # memory of Ray's own processes is not judged


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own flags."""
    parser.add_argument("--requests", type=int, default=10_000, help="hostile ones (default: 10000)")
    parser.add_argument("--rate", type=float, default=50.0, help="hostile requests per second (default: 50)")
    parser.add_argument("--streams", type=int, default=32, help="good clients (default: 32)")
    parser.add_argument("--calm", type=float, default=20.0, help="seconds without hostile requests (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the hostile requests (default: 1)")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a server, send it the requests and return what they did."""
    flags = ["--max-sequences", str(2 * settings.streams), "--kv-gib", "0.5", *settings.flags.split()]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        keys = Path(folder) / "keys.jsonl"
        headers = {"Authorization": f"Bearer {_create_key(keys)}"}
        with ServerProcess(settings.model, [*flags, "--api-keys", str(keys)]) as server:
            print(f"Making {settings.requests} requests of seed {settings.seed} ...", file=sys.stderr, flush=True)
            hostile = build_requests(settings.requests, settings.seed, server.model, headers)
            return asyncio.run(_measure(settings, server, hostile, headers))


def _create_key(file: Path) -> str:
    command = [sys.executable, "-m", "app.cli", "keys", "new", "--file", str(file), "--tenant", "fuzz"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


async def _measure(
    settings: argparse.Namespace, server: ServerProcess, hostile: Sequence[HostileRequest], headers: Mapping[str, str]
) -> BenchmarkReport:
    streams = ClientStreams(server, settings.streams, MAX_TOKENS, retries=0, headers=headers)
    await streams.learn_reference()
    await send_all(server.url, hostile[: min(len(hostile) // 4, N_WARM_UP)], settings.rate, HostileOutcome())
    await find_leaks(server.url, LEAK_TIMEOUT_S)
    descriptors, half = sum_by_part(server.pid, psutil.Process.num_fds), len(hostile) // 2
    async with streams.running():
        outcome, checkpoints = HostileOutcome(), [_read_checkpoint(server)]
        await asyncio.sleep(settings.calm)
        checkpoints.append(_read_checkpoint(server))
        for part in (hostile[:half], hostile[half:]):
            await send_all(server.url, part, settings.rate, outcome)
            checkpoints.append(_read_checkpoint(server))

    def find_descriptors() -> list[str]:
        now = sum_by_part(server.pid, psutil.Process.num_fds)
        return _find_growth(descriptors, now, MAX_NEW_DESCRIPTORS, "descriptors")

    outcome.wrong += await find_leaks(server.url, LEAK_TIMEOUT_S, find_descriptors)
    (_, before), (_, after) = checkpoints[2:]  # caches have filled in the first half
    outcome.wrong += _find_growth(before, after, MAX_GROWTH_MIB, "MiB")
    return _report(settings, streams, outcome, checkpoints)


def _read_checkpoint(server: ServerProcess) -> Checkpoint:
    return time.monotonic(), measure_memory(server.pid)


def _find_growth(before: Mapping[str, float], after: Mapping[str, float], limit: float, unit: str) -> list[str]:
    """Return the parts of the application that grew by more than ``limit``, in words."""
    growth = {part: after.get(part, 0.0) - before.get(part, 0.0) for part in APPLICATION_PARTS}
    return [f"{part} has {rise:.0f} {unit} more" for part, rise in growth.items() if rise > limit]


def _report(
    settings: argparse.Namespace, streams: ClientStreams, outcome: HostileOutcome, checkpoints: Sequence[Checkpoint]
) -> BenchmarkReport:
    (began, _), (disturbed, _), _, (ended, _) = checkpoints
    rows = [_build_row("alone", streams, began, disturbed), _build_row("attacked", streams, disturbed, ended)]
    wrong = [*outcome.wrong, *streams.failures]
    wrong += [f"client {client} received another text" for client in streams.changed_clients]
    ratio = rows[1]["p99"] / rows[0]["p99"]
    if not ratio <= MAX_P99_RATIO:  # also if it is not a number
        wrong.append(f"p99 is {ratio:.2f} times that of the good streams alone")
    print(*wrong[:MAX_SHOWN], sep="\n", file=sys.stderr)
    shown = table(COLUMNS, rows)
    print(shown)
    document = {"requests": settings.requests, "seed": settings.seed, "seconds": ended - disturbed}
    document |= {"phases": rows, "p99_ratio": ratio, "n_wrong": len(wrong), "wrong": wrong[:MAX_SHOWN]}
    document |= {"statuses": dict(outcome.statuses), "codes": dict(outcome.codes.most_common())}
    mib = [{part: round(one.get(part, 0.0)) for part in APPLICATION_PARTS} for _, one in checkpoints]
    document |= {"mib": dict(zip(("alone", "before", "half", "end"), mib, strict=True))}
    return BenchmarkReport(document, shown, bool(wrong))


def _build_row(phase: str, streams: ClientStreams, begin: float, end: float) -> dict[str, Any]:
    """Return the good answers of a phase, and the pauses within answers in ms."""
    pauses = find_pauses(record.chunks for record in streams.records)
    own = [seconds for at, seconds in pauses if begin <= at < end] or [float("nan")]
    figures = [round(1000 * float(one), 1) for one in np.percentile(own, (50, 99, 100))]
    answers = sum(begin <= record.ended < end for record in streams.records)
    return dict(zip(COLUMNS, (phase, answers, *figures), strict=True))
