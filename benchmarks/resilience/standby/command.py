"""Stages are killed while seeded streams run, with and without standbys: what does a standby save?

Starts ``spectra serve`` twice, without standbys and with --standby-stages, and each time kills one stage after another
(SIGKILL), --kills times, once all streams flow and all standbys wait. Columns, in seconds, medians over the kills:

    noticed            from the last sign of life until the loss was noticed: pings are a second apart
    process            until a process was there that had imported what it needs
    load               until it had loaded its layers
    connect            until all stages knew their neighbours
    replaced           from the notice until the pipeline was whole
    longest pause      of any stream, over all kills

Exit status 1: a request failed for good, a text differs from the undisturbed one, a stage was not replaced, or standbys
waited and none was taken. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from app.inputs.default_model import DEFAULT_MODEL
from benchmarks.resilience.faults import ServerCluster
from benchmarks.resilience.phases import Phase, longest_and_recovery, pauses
from benchmarks.resilience.recovery import FLOW_S, question
from benchmarks.resilience.streams import ClientStreams
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.server_process import ServerProcess

REPLACED_S = 120.0  # longest wait for a stage or a standby
LOOK_S = 0.05
SETTINGS = ("model", "stages", "standby_stages", "kills", "streams", "max_tokens", "flags")  # that _of_server reads
PHASES = ("noticed", "process", "load", "connect")
COLUMNS = {
    "standbys": "standbys",
    **{f"{phase}_seconds": f"{phase} s" for phase in PHASES},
    "replaced_seconds": "replaced s",
    "longest_pause": "longest pause s",
    "requests": "requests",
    "notes": "notes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--stages", type=int, default=2, help="of the pipeline (default: 2)")
    parser.add_argument("--standby-stages", type=int, default=1, help="of the second server (default: 1)")
    parser.add_argument("--kills", type=int, default=4, help="of each server (default: 4)")
    parser.add_argument("--streams", type=int, default=8, help="clients (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=300, help="of an answer (default: 300)")
    parser.add_argument("--flags", default="", help="further flags of spectra serve, in one string")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Measure both servers, one after the other, each from a process of its own: Serve's handles keep the cluster that
    a process joined first."""
    asked = argparse.Namespace(**{name: getattr(settings, name) for name in SETTINGS})
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        rows = list(processes.map(_of_server, [asked] * 2, (0, settings.standby_stages)))
    without, with_them = (row["replaced_seconds"] for row in rows)
    ratio = round(without / with_them, 1) if without and with_them else None
    shown = table(COLUMNS, [row | {"notes": "; ".join(row["notes"])} for row in rows])
    print(f"{shown}\nA standby makes a replacement {ratio} times as fast.")
    return BenchmarkReport({"servers": rows, "ratio": ratio}, shown, any(row["notes"] for row in rows))


def _of_server(settings: argparse.Namespace, standbys: int) -> dict[str, Any]:
    flags = ["--stages", str(settings.stages), "--standby-stages", str(standbys), *settings.flags.split()]
    with ServerProcess(settings.model, flags) as server:
        return asyncio.run(_measure(settings, server, standbys))


async def _measure(settings: argparse.Namespace, server: ServerProcess, standbys: int) -> dict[str, Any]:
    bodies = [question(server.model, client, settings.max_tokens) for client in range(settings.streams)]
    streams = ClientStreams(server.url, len(bodies), lambda client: (client, bodies[client]))
    await streams.learn_reference(bodies, len(bodies))
    cluster, notes = ServerCluster(server.pid), list[str]()
    found: list[dict[str, Any]] = []
    phases = []
    async with streams.running():
        for kill in range(settings.kills):
            phase = Phase(f"kill {kill}", time.monotonic())
            found.append(await _killed(cluster, streams, kill % settings.stages, standbys, phase))
            phases.append(phase)
    cluster.leave()
    summary = streams.summary()
    notes += [f"{len(summary['different_texts'])} texts differ"] if summary["different_texts"] else []
    notes += [f"{summary['failed']} requests failed: {summary['first_failures']}"] if summary["failed"] else []
    notes += [f"kill {i} took no standby" for i, one in enumerate(found) if standbys and not one["standbys"]]
    gaps = pauses(streams.received.values())
    medians = {name: round(statistics.median(one["phases"][name] for one in found), 3) for name in PHASES}
    return {
        "standbys": standbys,
        **{f"{name}_seconds": seconds for name, seconds in medians.items()},
        "replaced_seconds": round(statistics.median(one["seconds"] for one in found), 3),
        "longest_pause": round(max(longest_and_recovery(phase, gaps)[0] for phase in phases), 2),
        "requests": summary["requests"],
        "kills": found,
        "notes": notes,
    }


async def _killed(
    cluster: ServerCluster, streams: ClientStreams, place: int, standbys: int, phase: Phase
) -> dict[str, Any]:
    """Kill a stage once all standbys wait and all streams flow; returns what its replacement came to.

    Raises:
        SystemExit: the stage was not replaced, or no standby came up.
    """
    state = await _until(cluster, lambda now: sum(one["ready"] for one in now["standbys"]) == standbys)
    await streams.all_flow(FLOW_S)
    phase.acted = time.monotonic()
    os.kill(state["stages"][place]["pid"], signal.SIGKILL)
    after = await _until(cluster, lambda now: now["replacements"] > state["replacements"])
    await streams.all_flow(FLOW_S)
    phase.ended = time.monotonic()
    last: dict[str, Any] = after["last_replacement"]
    return last


async def _until(cluster: ServerCluster, true: Any) -> dict[str, Any]:
    deadline = time.monotonic() + REPLACED_S
    while not true(state := await cluster.state()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {REPLACED_S:.0f} s; the pipeline says {state}")
        await asyncio.sleep(LOOK_S)
    return state
