"""Does any text change when each process of a server is killed or stopped once?

Starts ``spectra serve`` with a pipeline of --stages of --tensor-parallel ranks and one speculator actor. --streams
clients ask one question each, undisturbed. Then they repeat their questions (half greedy, half sampled, with six
methods) during one fault after the other:

    kill stage ..      SIGKILL to every stage in turn, or to every rank of every stage
    kill target        the replica that owns the pipeline; its stages die with it
    kill router        the ingress passes its streams, with their output so far, to the new router
    kill ingress       breaks the connections: clients ask again with the same seed, as spectra load --retry does
    kill keeper        with --kept: the next one continues the answers that it finds in the Redis
    drop connections   with --kept: all clients lose theirs at once, and read on
    kill speculator    its drafts are missing until it is replaced
    stop stage ..      SIGSTOP to the same processes: a deadline detects a hung one, which is killed and replaced
    stop speculator    SIGSTOP, then SIGCONT at the end of the phase
    stop router        SIGSTOP: missing heartbeats detect it, and it is replaced

With --kept, two of three clients read resumable streams, and the others wait for responses in the background.

All faults of two stages take about three minutes on two idle cores. Columns, in seconds after the fault:

    replaced after     the victim has ended and another process of its kind runs
    not ready          first and last moment at which /ready was not 200
    longest pause      of any stream
    recovered after    end of the last pause above 0.5 s; clients of a lost ingress first receive their old text again
    phases             of the replacement of a stage or rank, as its owner reports them

Exit status 1: a request failed for good, a text differs from the undisturbed one, a stream broke although its ingress
lived, a victim was not replaced, or blocks, sessions or processes are left over. --out adds timeline.png. The last line
of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from app.load.records import Break
from app.reporting.plotting import grid, save
from benchmarks.resilience.observation import Sample, find_leaks, find_processes, sampling
from benchmarks.resilience.streams import ClientStreams, find_pauses
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.server_process import ServerProcess

# Set before Ray is imported and the server starts: with another address or token, this process cannot join its cluster.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

CLIENTS = "clients"  # the victims are connections, and no process of the server
GCS_FLAG = "--gcs-address="  # of a raylet
ANSWER_TIMEOUT_S = 60
RETRIES = 50  # of one request; a new ingress takes seconds to start
RECOVERY_TIMEOUT_S, LEAK_TIMEOUT_S = 90.0, 15.0
IN_FLIGHT_S = 0.3  # text that was sent before a fault has arrived after it
CALM_S = 3.0  # between recovery and the next fault
PERCEPTIBLE_S = 0.5  # shorter pauses do not count for the recovery


@dataclass(frozen=True)
class Fault:
    """A signal to one process of a part of the server."""

    name: str
    victim: str  # key of ``PARTS``
    place: int = 0  # of the stage or rank in its pipeline; the other parts have one process each
    number: signal.Signals = signal.SIGKILL
    is_resumed: bool = False  # SIGCONT ends the fault; no other process replaces the victim


def list_faults(stages: int, ranks: int, *, is_kept: bool = False) -> list[Fault]:
    """Return SIGKILL for every rank of every stage and for each other kind of process, then SIGSTOP.

    If answers are kept, their keeper is killed, too, and connections are lost.
    """
    kept = [Fault("kill keeper", "answer keeper"), Fault("drop connections", CLIENTS, is_resumed=True)] * is_kept
    names = [f"stage {i // ranks}" + f" rank {i % ranks}" * (ranks > 1) for i in range(stages * ranks)]
    return [
        *(Fault(f"kill {name}", "stages", i) for i, name in enumerate(names)),
        *(Fault(f"kill {part}", part) for part in ("target", "router", "ingress")),
        *kept,
        Fault("kill speculator", "speculators"),
        *(Fault(f"stop {name}", "stages", i, signal.SIGSTOP) for i, name in enumerate(names)),
        Fault("stop speculator", "speculators", number=signal.SIGSTOP, is_resumed=True),
        Fault("stop router", "router", number=signal.SIGSTOP),
    ]


def read_target_state(root: int) -> Any:
    """Return ``StageSupervisor.state``; the first call joins the server's Ray cluster."""
    import ray
    from ray import serve

    if not ray.is_initialized():
        words = find_processes(root, "raylet")[0].cmdline()
        address = next(word.removeprefix(GCS_FLAG) for word in words if word.startswith(GCS_FLAG))
        ray.init(address, log_to_driver=False, configure_logging=False)
    return serve.get_deployment_handle("Target", "spectra").state.remote().result(timeout_s=ANSWER_TIMEOUT_S)


@dataclass
class FaultPhase:
    """A fault and the server's recovery; moments are in monotonic seconds."""

    fault: Fault
    began: float = 0.0
    ended: float = 0.0
    pid: int = 0  # of the victim
    replaced: float | None = None  # seconds from the fault until another process of the kind ran
    phases: str = ""  # of the replacement of a stage or rank
    wrong: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own flags."""
    parser.add_argument("--streams", type=int, default=32, help="clients (default: 32)")
    parser.add_argument("--stages", type=int, default=2, help="of the pipeline (default: 2)")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks of a stage (default: 1)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default: 200)")
    parser.add_argument("--kept", metavar="REDIS", help="ask for answers that this Redis keeps, as in redis://HOST")
    parser.add_argument("--only", help="faults to inject, comma-separated, such as 'kill router,stop stage 0'")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a server, inject the faults and return what they did."""
    known = {
        fault.name: fault
        for fault in list_faults(settings.stages, settings.tensor_parallel, is_kept=bool(settings.kept))
    }
    names = settings.only.split(",") if settings.only else list(known)
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"--only names {', '.join(unknown)}; the faults are {', '.join(known)}")
    flags = f"--stages {settings.stages} --tensor-parallel {settings.tensor_parallel} --speculator-actors 1"
    flags += f" --method auto --max-sequences {settings.streams} --kv-gib 0.5 {settings.flags}"
    flags += f" --answer-store {settings.kept}" if settings.kept else ""
    with ServerProcess(settings.model, flags.split()) as server:
        return asyncio.run(_measure(settings, server, [known[name] for name in names]))


async def _measure(settings: argparse.Namespace, server: ServerProcess, faults: Sequence[Fault]) -> BenchmarkReport:
    import ray  # reads the environment that is set above

    streams = ClientStreams(server, settings.streams, settings.max_tokens, RETRIES, {}, bool(settings.kept))
    await streams.learn_reference()
    async with sampling(server, period_s=0.1) as samples, streams.running():
        phases = [await _inject(fault, streams, server.pid) for fault in tqdm(faults, "faults")]
    ray.shutdown()
    find_wrong = partial(_find_wrong_processes, server.pid, settings.stages * settings.tensor_parallel, phases)
    leaks = await find_leaks(server.url, LEAK_TIMEOUT_S, find_wrong)
    return _report(phases, streams, samples, leaks)


async def _inject(fault: Fault, streams: ClientStreams, root: int) -> FaultPhase:
    """Send the signal while all clients receive text; return when they do again and the victim is replaced."""
    phase = FaultPhase(fault)
    await streams.wait_for_text(RECOVERY_TIMEOUT_S)
    pids = [0] if fault.victim == CLIENTS else [process.pid for process in find_processes(root, fault.victim)]
    if fault.victim == "stages":
        pids = [one["pid"] for one in (await asyncio.to_thread(read_target_state, root))["stages"]]
    if len(pids) <= fault.place:
        raise RuntimeError(f"{fault.name}: only {len(pids)} processes of {fault.victim} run")
    phase.pid, phase.began = pids[fault.place], time.monotonic()
    streams.drop_connections() if fault.victim == CLIENTS else os.kill(phase.pid, fault.number)
    replacing = asyncio.create_task(_measure_replacement(phase, root, len(pids)))
    await asyncio.sleep(IN_FLIGHT_S)
    if not await streams.wait_for_text(RECOVERY_TIMEOUT_S):
        phase.wrong.append(f"not every stream continued within {RECOVERY_TIMEOUT_S:.0f} s")
    phase.replaced = await replacing
    if fault.victim == "stages" and (report := (await asyncio.to_thread(read_target_state, root))["last_replacement"]):
        phase.phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report["phases"].items())
    await asyncio.sleep(CALM_S)
    if fault.is_resumed and phase.pid:
        psutil.Process(phase.pid).resume()
    elif phase.replaced is None and phase.pid:
        phase.wrong.append("the victim was not replaced")
    phase.ended = time.monotonic()
    return phase


async def _measure_replacement(phase: FaultPhase, root: int, n_before: int) -> float | None:
    """Return seconds until the victim has ended and ``n_before`` of its kind run; None: it was not replaced."""
    while not phase.fault.is_resumed and time.monotonic() < phase.began + RECOVERY_TIMEOUT_S:
        pids = [process.pid for process in find_processes(root, phase.fault.victim)]
        if phase.pid not in pids and len(pids) >= n_before:
            return round(time.monotonic() - phase.began, 2)
        await asyncio.sleep(0.05)
    return None


def _find_wrong_processes(root: int, n_stages: int, phases: Sequence[FaultPhase]) -> list[str]:
    """Return missing processes, and victims that still run."""
    found = [(part, len(find_processes(root, part)), n) for part, n in (("stages", n_stages), ("speculators", 1))]
    killed = [phase for phase in phases if not phase.fault.is_resumed]
    wrong = [f"{n_found} {part} run instead of {n}" for part, n_found, n in found if n_found != n]
    return wrong + [f"{phase.fault.name}: {phase.pid} still runs" for phase in killed if psutil.pid_exists(phase.pid)]


def _report(
    phases: Sequence[FaultPhase], streams: ClientStreams, samples: Sequence[Sample], leaks: list[str]
) -> BenchmarkReport:
    pauses = find_pauses(streams.received)
    breaks = [found for record in streams.records for found in record.breaks]
    rows = [_build_row(phase, breaks, samples, pauses) for phase in phases]
    shown = table({key: key.replace("_", " ") for key in rows[0]}, rows)
    print(shown)
    failures, changed = streams.failures, streams.changed_clients
    document: dict[str, Any] = {"requests": len(streams.records), "failed": len(failures), "different_texts": changed}
    document |= {"retried": sum(record.retries for record in streams.records), "first_failures": failures[:3]}
    document |= {"leaks": leaks, "phases": rows}
    failed = bool(failures or changed or leaks or any(phase.wrong for phase in phases))
    return BenchmarkReport(document, shown, failed, partial(_plot, phases, streams.received, samples))


def _build_row(
    phase: FaultPhase, breaks: Sequence[Break], samples: Sequence[Sample], pauses: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Return the figures of a phase; streams that broke without the loss of an ingress are added to ``wrong``."""
    began, ended = phase.began, phase.ended
    n_broken = sum(began <= found.at <= ended for found in breaks)
    if n_broken and phase.fault.victim != "ingress":
        phase.wrong.append(f"{n_broken} streams broke, which only the loss of an ingress may cause")
    down = [round(one.at - began, 2) for one in samples if began <= one.at <= ended and not one.is_ready]
    own = [(end, seconds) for end, seconds in pauses if end >= began and end - seconds <= ended]
    return {
        "fault": phase.fault.name,
        "replaced_after": phase.replaced,
        "not_ready": [down[0], down[-1]] if down else None,
        "longest_pause": round(max((seconds for _, seconds in own), default=0.0), 2),
        "recovered_after": round(max((end - began for end, seconds in own if seconds > PERCEPTIBLE_S), default=0.0), 2),
        "phases": phase.phases,
        "broken_streams": n_broken,
        "notes": "; ".join(phase.wrong),
    }


def _plot(
    phases: Sequence[FaultPhase], received: Sequence[Sequence[float]], samples: Sequence[Sample], folder: Path
) -> None:
    """Draw a row of dots per client (when it received text), a line per fault, and bars where /ready was not 200."""
    start, end = (choose(chain(*received)) for choose in (min, max))
    figure, (axes,) = grid(1, 1, (max(11.0, (end - start) / 8), 6.0))
    for client, moments in enumerate(received):
        axes.plot([at - start for at in moments], [client] * len(moments), ".", markersize=1.5, color="tab:blue")
    for sample, following in pairwise(samples):
        if not sample.is_ready:
            axes.axvspan(sample.at - start, following.at - start, color="tab:orange", alpha=0.25, linewidth=0)
    for phase in phases:
        at, place = phase.began - start, axes.get_xaxis_transform()
        axes.axvline(at, color="tab:red", linewidth=0.9)
        axes.text(at, 1.02, phase.fault.name, transform=place, rotation=40, fontsize=8, color="tab:red")
    axes.set(xlabel="seconds; orange: /ready is not 200", ylabel="stream", xlim=(0, end - start))
    save(figure, folder / "timeline.png")
