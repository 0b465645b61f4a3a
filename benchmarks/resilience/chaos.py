"""Every process of a server is killed or stopped once while seeded streams run: does any text change?

Starts ``spectra serve`` with a pipeline of --stages and speculators in an actor, and asks --streams questions once,
undisturbed. Then every client asks its own question again and again (half of them greedy, half sampled, with six
methods) while one fault after the other is injected:

    kill stage ..      SIGKILL to every stage in turn
    kill target        the replica that owns the pipeline; its stages die with it
    kill speculator    drafts are missing until it is back
    kill router        the ingress hands what it has emitted to the new router
    kill ingress       breaks the connections: clients ask again with the same seed, as spectra load --retry does
    stop stage         SIGSTOP to one in the middle: a hung process, found by a deadline, killed, replaced
    stop speculator    SIGSTOP, then SIGCONT at the end of the phase
    stop router        SIGSTOP: found by missing heartbeats, replaced

All faults take about three minutes on two quiet cores. Columns, in seconds after the fault:

    replaced           the victim has gone and another process of its kind is there
    not ready          from when to when /ready said so
    longest pause      of any stream
    recovered          the end of the last pause above 0.5 s: every stream flows again. After the loss of an ingress,
                       clients must first receive again what they had before

Exit status 1: a request failed for good, a text differs from the undisturbed one, a stream broke that should not, a
victim was not replaced, or blocks, sessions or processes are left over. With --out: timeline.png, tables.md,
result.json. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.load.records import Break
from benchmarks.resilience.faults import Fault, ServerCluster, faults, inject
from benchmarks.resilience.observation import alive, is_running, left_over, sampled
from benchmarks.resilience.phases import Phase
from benchmarks.resilience.recovery import FLOW_S, SETTLE_S, question, report
from benchmarks.resilience.streams import ClientStreams
from benchmarks.support.reporting import BenchmarkReport
from benchmarks.support.server_process import ServerProcess

RETRIES = 50  # of one request; an ingress takes seconds to come back
REPLACED_S = 90.0  # longest wait for a victim to be replaced
COLUMNS = {
    "fault": "fault",
    "pid": "pid",
    "replaced_seconds": "replaced s",
    "not_ready": "not ready s",
    "longest_pause": "longest pause s",
    "recovered_seconds": "recovered s",
    "broken_streams": "broken streams",
    "notes": "notes",
}


@dataclass
class FaultPhase(Phase):
    """A fault and how the server recovered from it."""

    fault: Fault = field(kw_only=True)
    pid: int = 0
    replaced: float | None = None  # seconds from the fault until another process of the kind was there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--streams", type=int, default=32, help="clients (default: 32)")
    parser.add_argument("--stages", type=int, default=2, help="of the pipeline (default: 2)")
    parser.add_argument("--method", default="auto", help="of every sixth stream (default: auto)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default: 200)")
    parser.add_argument("--calm", type=float, default=3.0, help="seconds from recovery to the next fault (default: 3)")
    parser.add_argument("--only", help="faults to inject, comma-separated, such as 'kill router,stop stage'")
    parser.add_argument("--flags", default="", help="further flags of spectra serve, in one string")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a server and measure it."""
    known = {fault.name: fault for fault in faults(settings.stages)}
    names = settings.only.split(",") if settings.only else list(known)
    if unknown := [name for name in names if name not in known]:
        settings.fail(f"--only names {', '.join(unknown)}; there are {', '.join(known)}")
    flags = ["--stages", str(settings.stages), "--speculator-actors", "1", "--method", settings.method]
    flags += ["--max-sequences", str(settings.streams), "--kv-gib", "0.5", *settings.flags.split()]
    with ServerProcess(settings.model, flags) as server:
        return asyncio.run(_measure(settings, server, [known[name] for name in names]))


async def _measure(settings: argparse.Namespace, server: ServerProcess, chosen: Sequence[Fault]) -> BenchmarkReport:
    bodies = [question(server.model, client, settings.max_tokens) for client in range(settings.streams)]
    streams = ClientStreams(server.url, len(bodies), lambda client: (client, bodies[client]), RETRIES)
    print(f"{streams.n} streams undisturbed: {await streams.learn_reference(bodies, len(bodies)):.1f} s", flush=True)
    cluster = ServerCluster(server.pid)
    async with sampled(server.url, server.pid, period=0.1) as samples, streams.running():
        phases = [
            await _go_through(fault, streams, server.pid, cluster, settings.calm) for fault in tqdm(chosen, "faults")
        ]
    cluster.leave()
    wrong_processes = partial(_wrong_processes, server.pid, settings.stages, phases)
    leaks = await left_over(server.url, SETTLE_S, wrong_processes)
    return report("phases", COLUMNS, phases, _row, streams, samples, leaks)


async def _go_through(
    fault: Fault, streams: ClientStreams, root: int, cluster: ServerCluster, calm: float
) -> FaultPhase:
    """Inject a fault while all clients receive text, wait until they do again, then ``calm`` seconds more."""
    phase = FaultPhase(fault.name, time.monotonic(), fault=fault)
    await streams.all_flow(FLOW_S)
    stages, n_before = await cluster.stage_pids(), len(alive(root, fault.victim))
    phase.acted = time.monotonic()
    phase.pid = inject(root, fault, stages)
    replacing = asyncio.create_task(_replaced(phase, root, n_before))
    await asyncio.sleep(0.3)  # text that was on its way has arrived
    flowed = await streams.all_flow(FLOW_S)
    phase.replaced = await replacing
    await asyncio.sleep(calm)
    if fault.is_resumed:
        psutil.Process(phase.pid).resume()
    elif phase.replaced is None:
        phase.wrong.append("the victim was not replaced")
    if not flowed:
        phase.wrong.append(f"not every stream went on within {FLOW_S:.0f} s")
    phase.ended = time.monotonic()
    return phase


async def _replaced(phase: FaultPhase, root: int, wanted: int) -> float | None:
    """Seconds until the victim has gone and ``wanted`` processes of its kind are there; None: not replaced."""
    while not phase.fault.is_resumed and time.monotonic() < phase.acted + REPLACED_S:
        others = [process for process in alive(root, phase.fault.victim) if process.pid != phase.pid]
        if len(others) >= wanted and not is_running(phase.pid):
            return time.monotonic() - phase.acted
        await asyncio.sleep(0.05)
    return None


def _wrong_processes(root: int, stages: int, phases: Sequence[FaultPhase]) -> list[str]:
    """Processes that are missing, and victims that still run."""
    missing = []
    for kind, wanted in {"stages": stages, "speculators": 1}.items():
        if (found := len(alive(root, kind))) != wanted:
            missing.append(f"{found} {kind} run instead of {wanted}")
    victims = [phase for phase in phases if not phase.fault.is_resumed]
    return missing + [f"{phase.name}: {phase.pid} still runs" for phase in victims if psutil.pid_exists(phase.pid)]


def _row(phase: FaultPhase, broken: list[Break]) -> dict[str, Any]:
    if broken and not phase.fault.breaks_streams:
        phase.wrong.append(f"{len(broken)} streams broke, which only the loss of an ingress may do")
    return {
        "fault": phase.name,
        "pid": phase.pid,
        "replaced_seconds": None if phase.replaced is None else round(phase.replaced, 2),
        "broken_streams": len(broken),
    }
