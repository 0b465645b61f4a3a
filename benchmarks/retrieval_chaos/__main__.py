"""Snapshots come, go and break, and the Redis dies, while a real server answers: does any request notice?

Starts a Redis, a ``spectra serve --retrieval redis://..`` and clients that stream chat answers (greedy) one after the
other from beginning to end. Meanwhile another process does this to the store, a phase at a time:

    nothing            three times per round: the yardstick
    publish A, B       upload and activate; B is larger
    roll back          to A
    kill -9 Redis      A stays
    restart it empty   A stays
    publish B again
    damaged            a snapshot cut short in the Redis; activate refuses it, so it is made current by hand: B stays
    foreign            one of another tokenizer: B stays
    roll back          past both, to B

One client belongs to a namespace that learns from its own answers all the while. Columns, times in ms unless in s:

    done, failed         requests that ended in the phase
    median, p99, longest pauses between two events of a stream that ended in it
    at s                 when the longest ended, after the move of ``current``, the kill or the start
    late                 the most that a timer in the clients' process was late
    net                  the longest pause less what the timer was late within it: what the server took, not what the
                         machine withheld from everybody
    first                longest time from a request to its first event
    tok/fwd, learner     tokens per forward of the clients that do not learn, and of the one that does
    version              that /health shows at the end
    seen s               until /health showed the version (or the problem) after the move, the kill or the start
    stale s              staleness_seconds at the end

Single long pauses mean little on a busy machine: use --rounds, and compare with the phases in which nothing happens.

Exit status 1: a request failed, a text differs from the one without speculation, or a version is not the one expected.
The last line of stdout is one JSON document.

    python -m benchmarks.retrieval_chaos --out chaos --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import re
import signal
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from app.demo.paths import DEMO, DEMO_TARGET
from benchmarks.retrieval_chaos.clients import TENANT, prompts_of
from benchmarks.retrieval_chaos.measurement import Result, measure
from benchmarks.retrieval_chaos.moves import prepare_worker
from benchmarks.retrieval_chaos.processes import RedisProcess
from benchmarks.retrieval_chaos.report import report
from benchmarks.retrieval_chaos.snapshots import Snapshots, build_snapshots
from benchmarks.retrieval_chaos.steps import steps_of_a_round
from benchmarks.server_process import ServerProcess


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval_chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=DEMO, help="checkpoint directory (default: demo)")
    parser.add_argument("--method", default="spectra", help="(default: spectra)")
    parser.add_argument("--prompts", type=Path, help="Spec-Bench form, first turns; default: eight built-in ones")
    parser.add_argument("--limit", type=int, default=16, help="prompts taken (default: 16)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of an answer (default: 128)")
    parser.add_argument("--concurrency", type=int, default=4, help="clients; the first learns (default: 4)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a phase after its event (default: 5)")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of load before (default: 5)")
    parser.add_argument("--rounds", type=int, default=1, help="times that all phases are gone through (default: 1)")
    parser.add_argument("--small", type=int, default=200_000, help="tokens of A (default: 200000)")
    parser.add_argument("--large", type=int, default=2_000_000, help="tokens of B (default: 2000000)")
    parser.add_argument("--out", type=Path, help="folder for timeline.png, table.md and result.json")
    settings = parser.parse_args()
    for name in ("limit", "max_new_tokens", "rounds", "small", "large"):
        if getattr(settings, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(settings, name)}; it must be at least 1")
    if settings.concurrency < 2:
        parser.error(f"--concurrency is {settings.concurrency}; it must be at least 2: one client learns")
    return settings


def run(settings: argparse.Namespace, stack: ExitStack) -> tuple[Result, Snapshots]:
    """Start everything, measure; ``stack`` ends it."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spectra-chaos-")))
    print("Building snapshots of the standard library ...", file=sys.stderr, flush=True)
    model = DEMO_TARGET if settings.model == DEMO else Path(settings.model)
    snapshots = build_snapshots(model, folder, settings.small, settings.large)
    redis = RedisProcess()
    stack.callback(redis.kill)
    redis.start()
    where = ("--retrieval", redis.url, "--retrieval-cache", str(folder / "cache"))
    flags = ("--method", settings.method, *where, "--live", TENANT)
    server = ServerProcess(settings.model, flags, folder / "server.log")
    stack.callback(server.stop)
    print("Starting the server ...", file=sys.stderr, flush=True)
    server.start()
    gc.collect()
    gc.freeze()  # what the tokenizer brought: looking through it would hold the clients up
    context = multiprocessing.get_context("spawn")
    worker = ProcessPoolExecutor(1, context, initializer=prepare_worker)
    stack.callback(worker.shutdown)
    worker.submit(re.compile, "").result()  # so that it is there, with its imports
    prompts = prompts_of(settings.prompts, settings.limit)
    return asyncio.run(measure(settings, server, steps_of_a_round(redis, snapshots), prompts, worker)), snapshots


def main() -> int:
    """Measure and print; what was started ends in any case."""
    settings = parsed()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell started us with it ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with suppress(KeyboardInterrupt):
        with ExitStack() as stack:
            try:
                result, snapshots = run(settings, stack)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # nobody who is impatient may keep us from cleaning up
        return report(settings, result, snapshots)
    print("interrupted; everything that was started has ended", file=sys.stderr)
    return 130


if __name__ == "__main__":
    raise SystemExit(main())
