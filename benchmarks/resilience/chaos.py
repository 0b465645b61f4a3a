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
victim was not replaced, or blocks, sessions or processes are left over. With --out: timeline.png, table.md,
result.json. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil
from tqdm import tqdm

from app.demo.paths import DEMO
from app.inputs.prompts import BUILTIN
from benchmarks.resilience import plots
from benchmarks.resilience.faults import Cluster, Fault, faults, inject
from benchmarks.resilience.observation import Sample, alive, ask_health, is_running, sampled
from benchmarks.resilience.phases import Phase, longest_and_recovery, pauses
from benchmarks.resilience.streams import Streams, chat
from benchmarks.support.reporting import Report, table
from benchmarks.support.server_process import ServerProcess

METHODS = (None, "autoregressive", "pld", "suffix", "spectra-core", "suffix+token-recycling")  # None: the server's
RETRIES = 50  # of one request; an ingress takes seconds to come back
FLOW_S = 90.0  # longest wait for all streams to go on, and for a victim to be replaced
SETTLE_S = 15.0  # longest wait for sessions and blocks to be freed
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
    parser.add_argument("--model", default=DEMO, help="checkpoint directory (default: demo)")
    parser.add_argument("--streams", type=int, default=32, help="clients (default: 32)")
    parser.add_argument("--stages", type=int, default=2, help="of the pipeline (default: 2)")
    parser.add_argument("--method", default="auto", help="of every sixth stream (default: auto)")
    parser.add_argument("--max-tokens", type=int, default=600, help="of an answer (default: 600)")
    parser.add_argument("--calm", type=float, default=3.0, help="seconds from recovery to the next fault (default: 3)")
    parser.add_argument("--only", help="faults to inject, comma-separated, such as 'kill router,stop stage'")
    parser.add_argument("--flags", default="", help="further flags of spectra serve, in one string")


def run(settings: argparse.Namespace) -> Report:
    """Start a server and measure it."""
    known = {fault.name: fault for fault in faults(settings.stages)}
    names = settings.only.split(",") if settings.only else list(known)
    if unknown := [name for name in names if name not in known]:
        settings.fail(f"--only names {', '.join(unknown)}; there are {', '.join(known)}")
    flags = ["--stages", str(settings.stages), "--speculator-actors", "1", "--method", settings.method]
    flags += ["--max-sequences", str(settings.streams), "--kv-gib", "0.5", *settings.flags.split()]
    with ServerProcess(settings.model, flags) as server:
        return asyncio.run(_measure(settings, server, [known[name] for name in names]))


async def _measure(settings: argparse.Namespace, server: ServerProcess, chosen: Sequence[Fault]) -> Report:
    bodies = [question(server.model, client, settings.max_tokens) for client in range(settings.streams)]
    streams = Streams(server.url, len(bodies), lambda client: (client, bodies[client]), RETRIES)
    print(f"{streams.n} streams undisturbed: {await streams.learn_reference(bodies, len(bodies)):.1f} s", flush=True)
    cluster = Cluster()
    async with sampled(server.url, server.pid, period=0.1) as samples, streams.running():
        phases = [
            await _go_through(fault, streams, server.pid, cluster, settings.calm) for fault in tqdm(chosen, "faults")
        ]
    cluster.leave()
    return _report(phases, streams, samples, await _left_over(server, settings.stages, phases))


def question(model: str, client: int, max_tokens: int) -> dict[str, Any]:
    """What a client asks: half of them greedily, half with a seed, with six methods."""
    sampling = {"ignore_eos": True, "temperature": 0.8 if client % 2 else 0.0, "seed": 100 + client}
    method = METHODS[client % len(METHODS)]
    speculative = {} if method is None else {"speculative": {"method": method}}
    return chat(model, BUILTIN[client % len(BUILTIN)], max_tokens, **sampling, **speculative)


async def _go_through(fault: Fault, streams: Streams, root: int, cluster: Cluster, calm: float) -> FaultPhase:
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
    while not phase.fault.is_resumed and time.monotonic() < phase.acted + FLOW_S:
        others = [process for process in alive(root, phase.fault.victim) if process.pid != phase.pid]
        if len(others) >= wanted and not is_running(phase.pid):
            return time.monotonic() - phase.acted
        await asyncio.sleep(0.05)
    return None


async def _left_over(server: ServerProcess, stages: int, phases: Sequence[FaultPhase]) -> list[str]:
    """What should have gone and has not, after a while."""
    deadline, leaks = time.monotonic() + SETTLE_S, ["nothing was examined"]
    async with aiohttp.ClientSession() as session:
        while leaks and time.monotonic() < deadline:
            health = await ask_health(session, server.url)
            names = ("sessions", "running", "waiting", "speculator_states")
            leaks = [f"{name} is {health.get(name)}" for name in names if health.get(name) != 0]
            if health.get("free_blocks") != health.get("blocks"):
                leaks.append(f"{health.get('free_blocks')} of {health.get('blocks')} blocks are free")
            for kind, wanted in {"stages": stages, "speculators": 1}.items():
                if (found := len(alive(server.pid, kind))) != wanted:
                    leaks.append(f"{found} {kind} run instead of {wanted}")
            await asyncio.sleep(0.2)
    victims = [phase for phase in phases if not phase.fault.is_resumed]
    return leaks + [f"{phase.name}: {phase.pid} still runs" for phase in victims if psutil.pid_exists(phase.pid)]


def _report(phases: Sequence[FaultPhase], streams: Streams, samples: Sequence[Sample], leaks: list[str]) -> Report:
    by_client: dict[int, list[float]] = defaultdict(list)
    for record in streams.records:
        by_client[record.index].extend(record.chunks)
    gaps = pauses(by_client.values())
    rows = [_row(phase, streams, samples, gaps) for phase in phases]
    different = sorted({record.prompt for record in streams.records if streams.is_different(record)})
    document: dict[str, Any] = {
        "streams": streams.n,
        "requests": len(streams.records),
        "failed": len(streams.failures),
        "first_failures": streams.failures[:3],
        "different_texts": different,
        "retried": sum(record.retries for record in streams.records),
        "leaks": leaks,
        "wrong": [f"{phase.name}: {what}" for phase in phases for what in phase.wrong],
        "phases": rows,
    }
    shown = table(COLUMNS, [row | {"notes": "; ".join(row["notes"]), "not_ready": span(row)} for row in rows])
    print(shown)
    failed = bool(streams.failures or different or leaks or document["wrong"])
    return Report(document, shown, failed, lambda out: plots.chaos(phases, by_client, samples, out / "timeline.png"))


def _row(
    phase: FaultPhase, streams: Streams, samples: Sequence[Sample], gaps: list[tuple[float, float]]
) -> dict[str, Any]:
    longest, recovered = longest_and_recovery(phase, gaps)
    during = [sample for sample in samples if phase.acted <= sample.at <= phase.ended]
    down = [sample.at - phase.acted for sample in during if not sample.is_ready]
    breaks = [found for record in streams.records for found in record.breaks]
    n_broken = sum(phase.acted <= found.at <= phase.ended for found in breaks)
    if n_broken and not phase.fault.breaks_streams:
        phase.wrong.append(f"{n_broken} streams broke, which only the loss of an ingress may do")
    return {
        "fault": phase.name,
        "pid": phase.pid,
        "replaced_seconds": None if phase.replaced is None else round(phase.replaced, 2),
        "not_ready_from": round(down[0], 2) if down else None,
        "not_ready_until": round(down[-1], 2) if down else None,
        "longest_pause": round(longest, 2),
        "recovered_seconds": round(recovered, 2),
        "broken_streams": n_broken,
        "notes": phase.wrong,
    }


def span(row: dict[str, Any]) -> str | None:
    """When a row was not ready, for the table."""
    return None if row["not_ready_from"] is None else f"{row['not_ready_from']} - {row['not_ready_until']}"
