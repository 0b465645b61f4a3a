"""Does the memory of a server or its KV cache grow under half an hour of mixed load?

Starts ``spectra serve`` with two stages and a speculator actor, and ``spectra load`` (closed loop, prompts of different
lengths, sampled). Every five seconds it notes the resident memory of each part, and the KV blocks in use. The table
shows per part: memory after the first third and at the end, and the slope of a line through the last two thirds.

Exit status 1: a part grew by more than --limit MiB per hour in the last two thirds, blocks or sessions are left after
the load, a request failed, or answers to one seed differ. --out adds memory.png. The last line of stdout is one JSON
document.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.reporting.plotting import colour, grid, save
from benchmarks.resilience.observation import Sample, find_leaks, sampling
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.server_process import ServerProcess, load

PERIOD_S, LEAK_TIMEOUT_S = 5.0, 5.0
COLUMNS = ("part", "mib_after_a_third", "mib_at_the_end", "mib_per_hour")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own flags."""
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (default: 30)")
    parser.add_argument("--concurrency", type=int, default=8, help="clients (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default: 200)")
    parser.add_argument("--limit", type=float, default=60.0, help="MiB per hour that a part may grow (default: 60)")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a server, load it and return how its memory developed."""
    flags = ["--stages", "2", "--speculator-actors", "1", *settings.flags.split()]
    with ServerProcess(settings.model, flags) as server:
        return asyncio.run(_measure(settings, server))


async def _measure(settings: argparse.Namespace, server: ServerProcess) -> BenchmarkReport:
    flags: list[Any] = ["--concurrency", settings.concurrency, "--duration", settings.minutes * 60]
    flags += ["--max-tokens", settings.max_tokens, "--temperature", 0.8, "--repeat-check", 512]
    async with sampling(server, PERIOD_S, with_memory=True) as samples:
        loaded = await load(server.url, *flags)
    wrong = await find_leaks(server.url, LEAK_TIMEOUT_S)
    rows = measure_growth(samples)
    growing = [row for row in rows if row["mib_per_hour"] > settings.limit]
    wrong += [f"{row['part']} grows by {row['mib_per_hour']} MiB per hour" for row in growing]
    if loaded["failed"]:
        wrong.append(f"{loaded['failed']} requests failed: {loaded['errors']}")
    if loaded["identity"]["differing"]:
        wrong.append(f"texts of one seed differ: {loaded['identity']['differing'][:3]}")
    shown = table({key: key.replace("_", " ") for key in COLUMNS}, rows)
    print(shown)
    used = [round(sample.kv_use, 3) for sample in samples if sample.kv_use is not None]
    document = {"minutes": settings.minutes, "memory": rows, "kv_use_max": max(used, default=None)}
    document |= {"kv_use_at_the_end": used[-1] if used else None, "load": loaded, "wrong": wrong}
    return BenchmarkReport(document, shown, bool(wrong), partial(_plot, samples))


def measure_growth(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return per part: MiB after a third and at the end, and MiB per hour over the last two thirds."""
    kept = samples[len(samples) // 3 :]
    hours = np.array([sample.at - kept[0].at for sample in kept]) / 3600
    ends = max(1, len(kept) // 20)
    rows = []
    for part in sorted(kept[-1].memory):
        mib = np.array([sample.memory.get(part, 0.0) for sample in kept])
        slope = float(np.polyfit(hours, mib, 1)[0]) if len(kept) > 2 else 0.0
        figures = (mib[:ends].mean(), mib[-ends:].mean(), slope)
        rows.append(dict(zip(COLUMNS, (part, *(round(float(one), 1) for one in figures)), strict=True)))
    return rows


def _plot(samples: Sequence[Sample], folder: Path) -> None:
    """Draw the memory of each part above, and the use of the KV cache below."""
    figure, (above, below) = grid(2, 1, (11, 7), sharex=True, height_ratios=(2, 1))
    minutes = [(sample.at - samples[0].at) / 60 for sample in samples]
    last = samples[-1].memory
    for i, part in enumerate(sorted(last, key=last.__getitem__, reverse=True)):
        above.plot(minutes, [sample.memory.get(part, 0.0) for sample in samples], label=part, color=colour(i))
    above.set(ylabel="MiB resident")
    above.set_ylim(bottom=0)
    above.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    used = [(at, 100 * sample.kv_use) for at, sample in zip(minutes, samples, strict=True) if sample.kv_use is not None]
    below.plot(*zip(*used, strict=True), lw=0.8)
    below.set(xlabel="minutes", ylabel="% of KV blocks in use")
    save(figure, folder / "memory.png")
