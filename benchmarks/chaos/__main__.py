"""Processes of a server are killed and stopped one after the other while seeded streams run: does any text notice?

Starts ``spectra serve`` with a pipeline of --stages and speculators in an actor, and asks --streams questions once,
undisturbed. Then every client asks its own question again and again (half greedy, half sampled, with six methods)
while this happens, a phase at a time:

    kill stage ..      SIGKILL every stage in turn
    kill target        the replica that owns the pipeline; its stages die with it
    kill speculator    drafts are missing until it is back
    kill router        the ingress hands what it has emitted to the new one
    kill ingress       breaks the connections: clients ask again with the same seed, as spectra load --retry does
    stop stage         SIGSTOP one in the middle: a hung process; found by a deadline, killed, replaced
    stop speculator    SIGSTOP, woken at the end of the phase
    stop router        SIGSTOP: found by silence, replaced

Columns, in seconds after the blow:

    replaced           the victim has gone and another process of its kind is there
    not ready          from when to when /health said so
    longest pause      that any stream saw
    recovered          when the last pause above 0.5 s ended: every stream flows again. After an ingress, clients are
                       first written again what they had before

Exit status 1: a request failed for good, a text differs from the undisturbed one, a stream broke that should not,
something was not replaced, or blocks, sessions or processes are left over. The last line of stdout is one JSON
document.

    python -m benchmarks.chaos --out chaos
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import aiohttp
import psutil
from tqdm import tqdm

from app.demo.paths import DEMO
from benchmarks.chaos.blows import SPECULATOR, STAGE, Blow, alive, blows
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.phases import Phase, go_through
from benchmarks.chaos.report import report
from benchmarks.chaos.streams import Streams
from benchmarks.chaos.watch import Watch, ask_health
from benchmarks.server_process import ServerProcess

SETTLE_S = 15.0


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEMO, help="checkpoint directory (default: demo)")
    parser.add_argument("--streams", type=int, default=32, help="clients (default: 32)")
    parser.add_argument("--stages", type=int, default=2, help="of the pipeline (default: 2)")
    parser.add_argument("--method", default="auto", help="of every sixth stream (default: auto)")
    parser.add_argument("--max-tokens", type=int, default=600, help="of an answer (default: 600)")
    parser.add_argument(
        "--calm", type=float, default=3.0, help="seconds between recovery and the next blow (default: 3)"
    )
    parser.add_argument("--only", help="blows to strike, comma-separated, such as 'kill router,stop stage'")
    parser.add_argument("--flags", default="", help="further flags of spectra serve, in one string")
    parser.add_argument("--out", type=Path, help="folder for timeline.png, table.md and result.json")
    settings = parser.parse_args()
    known = [blow.name for blow in blows(settings.stages)]
    for name in settings.only.split(",") if settings.only else ():
        if name not in known:
            parser.error(f"--only names {name!r}; there are {', '.join(known)}")
    return settings


def chosen(settings: argparse.Namespace) -> list[Blow]:
    """The blows of this run."""
    every = blows(settings.stages)
    return every if settings.only is None else [blow for blow in every if blow.name in settings.only.split(",")]


def server_of(settings: argparse.Namespace, folder: Path) -> ServerProcess:
    """Not started yet."""
    flags = ["--stages", str(settings.stages), "--speculator-actors", "1", "--method", settings.method]
    flags += ["--max-sequences", str(settings.streams), "--kv-gib", "0.5", *settings.flags.split()]
    return ServerProcess(settings.model, flags, folder / "server.log")


async def storm(settings: argparse.Namespace, streams: Streams, watch: Watch) -> list[Phase]:
    """All blows, with the streams running."""
    cluster = Cluster()
    async with watch:
        running = asyncio.create_task(streams.run())
        every = tqdm(chosen(settings), desc="blows", file=sys.stderr)
        phases = [await go_through(blow, streams, watch, cluster, settings.calm) for blow in every]
        streams.stop()
        await running
    cluster.leave()
    return phases


async def left_over(server: ServerProcess, settings: argparse.Namespace, phases: Sequence[Phase]) -> list[str]:
    """What should have gone and has not."""
    deadline, leaks = time.monotonic() + SETTLE_S, ["nothing was looked at"]
    async with aiohttp.ClientSession() as session:
        while leaks and time.monotonic() < deadline:
            health = await ask_health(session, server.url)
            names = ("sessions", "running", "waiting", "speculator_states")
            leaks = [f"{name} is {health.get(name)}" for name in names if health.get(name) != 0]
            if health.get("free_blocks") != health.get("blocks"):
                leaks.append(f"{health.get('free_blocks')} of {health.get('blocks')} blocks are free")
            wanted = {STAGE: settings.stages, SPECULATOR: 1}
            found = {kind: len(alive(server.pid, kind)) for kind in wanted}
            leaks += [f"{found[k]} processes {k} instead of {n}" for k, n in wanted.items() if found[k] != n]
            await asyncio.sleep(0.2)
    dead = [phase for phase in phases if not phase.blow.wakes]
    return leaks + [f"{phase.blow.name}: {phase.pid} still runs" for phase in dead if psutil.pid_exists(phase.pid)]


async def measure(settings: argparse.Namespace, server: ServerProcess) -> int:
    """Undisturbed, storm, what is left; prints."""
    streams = Streams(server.url, server.model, settings.streams, settings.max_tokens)
    took = await streams.undisturbed()
    print(f"{streams.n} streams undisturbed: {took:.1f} s", file=sys.stderr)
    watch = Watch(server.url, server.pid)
    phases = await storm(settings, streams, watch)
    return report(phases, streams, watch, await left_over(server, settings, phases), settings.out)


def main() -> int:
    """Measure and print; what was started ends in any case."""
    settings = parsed()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spectra-chaos-")))
        server = server_of(settings, folder)
        stack.callback(server.stop)
        print("Starting the server ...", file=sys.stderr, flush=True)
        server.start()
        return asyncio.run(measure(settings, server))
    return 130


if __name__ == "__main__":
    raise SystemExit(main())
