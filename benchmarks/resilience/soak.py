"""A real server under mixed load for half an hour: does its memory or its KV cache grow?

Starts ``spectra serve`` with a pipeline, and ``spectra load`` (closed loop, prompts of changing lengths, sampled, with
the server's method) beside it. Every five seconds it notes resident memory of every part and what /health says. At the
end, per part: memory after the first third and at the end, and the slope of a line through the last two thirds.

Exit status 1: a part grew by more than --limit MiB per hour in the last two thirds, blocks or sessions are left after
the load, a request failed, or answers to one seed differ. With --out: memory.png, tables.md, result.json. The last line
of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from app.inputs.default_model import DEFAULT_MODEL
from benchmarks.resilience import plots
from benchmarks.resilience.observation import Sample, ask_health, sampled
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.server_process import ServerProcess, load

PERIOD_S, SETTLE_S = 5.0, 2.0
COLUMNS = {
    "part": "part",
    "after_a_third": "MiB after a third",
    "at_the_end": "MiB at the end",
    "mib_per_hour": "MiB per hour",
}
Growth = dict[str, dict[str, float]]  # part -> figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (default: 30)")
    parser.add_argument("--concurrency", type=int, default=8, help="clients (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default: 200)")
    parser.add_argument("--prompts", type=Path, help="JSON lines for spectra load (default: its built-in ones)")
    parser.add_argument("--flags", default="--stages 2 --speculator-actors 1", help="flags of spectra serve")
    parser.add_argument("--limit", type=float, default=60.0, help="MiB per hour a part may grow (default: 60)")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a server and measure it."""
    with ServerProcess(settings.model, settings.flags.split()) as server:
        until = time.strftime("%H:%M", time.localtime(time.time() + 60 * settings.minutes))
        print(f"{settings.minutes:g} minutes of load, until {until} ...", file=sys.stderr, flush=True)
        samples, loaded, after = asyncio.run(_measure(settings, server))
    grown = growth(samples)
    used = [sample.kv_use for sample in samples if sample.kv_use is not None]
    wrong = wrong_with(grown, settings.limit, loaded, after)
    shown = table(COLUMNS, [{"part": part, **figures} for part, figures in sorted(grown.items())])
    print(shown)
    document = {"minutes": settings.minutes, "memory": grown, "kv_use_max": round(max(used, default=0.0), 3)}
    document |= {"kv_use_at_the_end": used[-1] if used else None, "load": loaded, "wrong": wrong}
    return BenchmarkReport(document, shown, bool(wrong), lambda out: plots.soak(samples, out / "memory.png"))


async def _measure(
    settings: argparse.Namespace, server: ServerProcess
) -> tuple[list[Sample], dict[str, Any], dict[str, Any]]:
    """(samples, document of spectra load, /health after the load)."""
    flags: list[Any] = ["--concurrency", settings.concurrency, "--duration", settings.minutes * 60]
    flags += ["--max-tokens", settings.max_tokens, "--temperature", 0.8, "--repeat-check", 512]
    if settings.prompts is not None:
        flags += ["--prompts", settings.prompts]
    async with sampled(server.url, server.pid, PERIOD_S, with_memory=True) as samples:
        loaded = await load(server.url, *flags)
    await asyncio.sleep(SETTLE_S)
    async with aiohttp.ClientSession() as session:
        return samples, loaded, await ask_health(session, server.url)


def growth(samples: Sequence[Sample]) -> Growth:
    """Part -> MiB after a third and at the end, and MiB per hour over the last two thirds."""
    kept = samples[len(samples) // 3 :]
    hours = np.array([sample.at - kept[0].at for sample in kept]) / 3600
    ends = max(1, len(kept) // 20)
    found = {}
    for part in kept[-1].memory:
        values = np.array([sample.memory.get(part, 0.0) for sample in kept])
        slope = float(np.polyfit(hours, values, 1)[0]) if len(kept) > 2 else 0.0
        found[part] = {
            "after_a_third": round(float(values[:ends].mean()), 1),
            "at_the_end": round(float(values[-ends:].mean()), 1),
            "mib_per_hour": round(slope, 1),
        }
    return found


def wrong_with(grown: Growth, limit: float, loaded: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Everything that must not be.

    Args:
        grown: memory by part.
        limit: MiB per hour that a part may grow.
        loaded: document of ``spectra load``.
        after: /health after the load.
    """
    rates = {part: figures["mib_per_hour"] for part, figures in grown.items()}
    wrong = [f"{part} grows by {rate} MiB per hour" for part, rate in rates.items() if rate > limit]
    if after.get("free_blocks") != after.get("blocks") or after.get("sessions") != 0:
        wrong.append(f"left over: {after}")
    if loaded["failed"]:
        wrong.append(f"{loaded['failed']} requests failed: {loaded['errors']}")
    if loaded["identity"]["differing"]:
        wrong.append(f"texts of one seed differ: {loaded['identity']['differing'][:3]}")
    return wrong
