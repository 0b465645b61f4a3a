"""Malformed and extreme requests, one after the other, while good streams run: does any of them notice?

Starts ``spectra serve``; 32 clients ask questions whose undisturbed answers are known. First they do so alone, then
beside --requests hostile requests, --rate a second: fields of wrong types and sizes (hypothesis, from the schemas),
damaged bytes, deep nesting, odd headers, methods and paths, uploads that are slow or break off, clients that leave.
--seed makes the same requests again; whatever goes wrong is printed with the request.

Exit status 1: an answer was 5xx or not in OpenAI's form, a 400 to a JSON object names no field, a good text changed or
failed, sessions, states, blocks or descriptors are left over, a part's memory has grown by more than --growth MiB in
the second half, or the p99 pause of the good streams is above --factor times that without the hostile ones. The last
line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.prompts import BUILTIN
from benchmarks.resilience.hostile.clients import HostileOutcome, send_all
from benchmarks.resilience.hostile.requests import Hostile, hostile_requests
from benchmarks.resilience.observation import left_over, part_of, processes, resident, title
from benchmarks.resilience.phases import pauses
from benchmarks.resilience.streams import ClientStreams, chat
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.server_process import ServerProcess

SETTLE_S = 120.0  # longer than HTTP connections are kept open for the next request
COLUMNS = {"phase": "phase", "answers": "good answers", "median": "pause ms p50", "p99": "p99", "longest": "longest"}
MOST_SHOWN = 20
PARTS_OF_OURS = ("stages", "router", "ingress", "target")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--requests", type=int, default=10_000, help="hostile ones (default: 10000)")
    parser.add_argument("--rate", type=float, default=50.0, help="of them per second (default: 50)")
    parser.add_argument("--streams", type=int, default=32, help="good clients (default: 32)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of a good answer (default: 200)")
    parser.add_argument("--calm", type=float, default=20.0, help="seconds without hostile requests (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the hostile requests (default: 1)")
    parser.add_argument("--growth", type=float, default=64.0, help="MiB that a part may grow (default: 64)")
    parser.add_argument("--factor", type=float, default=2.0, help="of p99 that is allowed (default: 2)")
    parser.add_argument("--keys", action="store_true", help="the server asks for API keys; hostile clients have one")
    parser.add_argument("--flags", default="", help="further flags of spectra serve, in one string")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a server and measure it."""
    flags = ["--max-sequences", str(2 * settings.streams), "--kv-gib", "0.5", *settings.flags.split()]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        headers: dict[str, str] = {}
        if settings.keys:
            file = Path(folder) / "keys.jsonl"
            headers = {"Authorization": f"Bearer {_new_key(file)}"}
            flags += ["--api-keys", str(file)]
        with ServerProcess(settings.model, flags) as server:
            print(f"Making {settings.requests} requests of seed {settings.seed} ...", file=sys.stderr, flush=True)
            hostile = hostile_requests(settings.requests, settings.seed, server.model, headers)
            return asyncio.run(_measure(settings, server, hostile, headers))


def _new_key(file: Path) -> str:
    command = [sys.executable, "-m", "app.cli", "keys", "new", "--file", str(file), "--tenant", "fuzz"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


async def _measure(
    settings: argparse.Namespace, server: ServerProcess, hostile: Sequence[Hostile], headers: Mapping[str, str]
) -> BenchmarkReport:
    bodies = [_question(server.model, client, settings.max_tokens) for client in range(settings.streams)]
    streams = ClientStreams(server.url, len(bodies), lambda client: (client, bodies[client]), headers=headers)
    await streams.learn_reference(bodies, len(bodies))
    outcome = HostileOutcome()
    warm = hostile[: min(len(hostile) // 4, 200)]  # memory that a first request of a kind takes for good
    await send_all(server.url, warm, settings.rate, HostileOutcome())
    await left_over(server.url, SETTLE_S)
    files, half = _descriptors(server.pid), len(hostile) // 2
    async with streams.running():
        began = time.monotonic()
        await asyncio.sleep(settings.calm)
        disturbed = time.monotonic()
        memory = [resident(server.pid)]
        for part in (hostile[:half], hostile[half:]):
            await send_all(server.url, part, settings.rate, outcome)
            memory.append(resident(server.pid))
        ended = time.monotonic()
    leaks = await left_over(server.url, SETTLE_S, lambda: _grown(files, _descriptors(server.pid), 2, "descriptors"))
    leaks += _grown(memory[1], memory[2], settings.growth, "MiB")  # by then what is kept for later requests is full
    return _report(settings, streams, outcome, leaks, memory, (began, disturbed, ended))


def _question(model: str, client: int, max_tokens: int) -> dict[str, Any]:
    sampling = {"ignore_eos": True, "temperature": 0.8 if client % 2 else 0.0, "seed": 100 + client}
    return chat(model, BUILTIN[client % len(BUILTIN)], max_tokens, **sampling)


def _descriptors(root: int) -> dict[str, float]:
    """Open files and sockets of every part of the server."""
    found: dict[str, float] = defaultdict(float)
    for process in processes(root):
        with contextlib.suppress(psutil.Error):
            found[part_of(title(process))] += process.num_fds()
    return dict(found)


def _grown(before: Mapping[str, float], after: Mapping[str, float], most: float, unit: str) -> list[str]:
    """Parts of the application that have grown by more than ``most``; what Ray keeps for itself is not ours."""
    rises = {part: after.get(part, 0.0) - before.get(part, 0.0) for part in PARTS_OF_OURS}
    return [f"{part} has {rise:.0f} {unit} more" for part, rise in rises.items() if rise > most]


def _report(
    settings: argparse.Namespace,
    streams: ClientStreams,
    outcome: HostileOutcome,
    leaks: list[str],
    memory: Sequence[Mapping[str, float]],
    moments: tuple[float, float, float],
) -> BenchmarkReport:
    began, disturbed, ended = moments
    gaps = pauses([record.chunks for record in streams.records])
    rows = []
    for name, first, last in (("alone", began, disturbed), ("beside them", disturbed, ended)):
        own = [gap for at, gap in gaps if first <= at < last] or [float("nan")]
        median, p99, longest = np.percentile(own, (50, 99, 100)) * 1000
        answers = sum(first <= record.ended < last for record in streams.records)
        rows.append({"phase": name, "answers": answers, "median": median, "p99": p99, "longest": longest})
    wrong = [*outcome.wrong, *leaks, *streams.failures]
    wrong += [f"another text of client {r.index}" for r in streams.records if streams.is_different(r)]
    ratio = rows[1]["p99"] / rows[0]["p99"]
    if not ratio <= settings.factor:
        wrong.append(f"p99 is {ratio:.2f} times that of the good streams alone")
    for one in wrong[:MOST_SHOWN]:
        print(one, file=sys.stderr)
    shown = table(COLUMNS, [{k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()} for row in rows])
    print(shown)
    document = {"requests": settings.requests, "seed": settings.seed, "seconds": ended - disturbed, "phases": rows}
    document |= {"p99_ratio": ratio, "statuses": dict(outcome.statuses), "codes": dict(outcome.codes.most_common())}
    shown_parts = [{part: round(one.get(part, 0.0)) for part in PARTS_OF_OURS} for one in memory]
    document |= {"mib": dict(zip(("before", "half", "end"), shown_parts, strict=True))}
    document |= {"n_wrong": len(wrong), "wrong": wrong[:MOST_SHOWN]}
    return BenchmarkReport(document, shown, bool(wrong))
