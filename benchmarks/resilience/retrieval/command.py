"""Snapshots are published, rolled back and damaged, and the Redis dies, while a real server answers: does any request
notice?

Starts a Redis, a ``spectra serve --retrieval redis://..`` and clients that stream chat answers (greedy) one after the
other from beginning to end. Meanwhile another process changes the store, a phase at a time:

    nothing            three times per round, to compare with
    publish A, B       upload and activate; B is larger
    roll back          to A
    kill -9 Redis      A stays
    restart it empty   A stays
    publish B again
    damaged            a snapshot cut short in the Redis; activate refuses it, so it is made current by hand: B stays
    foreign            one of another tokenizer: B stays
    roll back          past both, to B

The first client belongs to a namespace that learns from its own answers all the while. A round takes a minute and a
half. Columns, times in ms unless in s:

    done, failed         requests that ended in the phase
    median, p99, longest pauses between two chunks of text of a stream, which ended in the phase
    at s                 when the longest ended, after the change of ``current``, the kill or the start
    late                 the longest lateness of a timer in the clients' process
    net                  the longest pause less the timer's lateness within it: the server's share, without what other
                         processes took of the machine
    first                longest time from a request to its first text
    tok/fwd, learner     tokens per forward of the clients that do not learn, and of the one that does
    version              that /health shows at the end
    seen s               until /health showed the version (or the problem) after the change, the kill or the start
    stale s              staleness_seconds at the end

Single long pauses mean little on a busy machine: use --rounds, and compare with the phases in which nothing happens.

Exit status 1: a request failed, a text differs from the one without speculation, or the server showed something else
than it should. With --out: timeline.png, tables.md, result.json. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.prompts import CHAT, read_bodies
from benchmarks.resilience import plots
from benchmarks.resilience.phases import net_of, pauses
from benchmarks.resilience.retrieval.changes import NOTHING, Change, changes_of_a_round, prepare_worker
from benchmarks.resilience.retrieval.driver import ChangePhase, RetrievalDriver
from benchmarks.resilience.retrieval.figures import LEARNER, row_of, summary, tables
from benchmarks.resilience.retrieval.redis_process import RedisProcess
from benchmarks.resilience.retrieval.snapshots import Snapshots, build_snapshots
from benchmarks.resilience.streams import Body, ClientStreams, chat
from benchmarks.support.reporting import BenchmarkReport
from benchmarks.support.server_process import ServerProcess

TENANT = "learner"
TIMER_S = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--method", default="spectra", help="(default: spectra)")
    parser.add_argument("--prompts", type=Path, help="JSON lines as spectra load takes them (default: eight built-in)")
    parser.add_argument("--limit", type=int, default=16, help="prompts taken (default: 16)")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer (default: 128)")
    parser.add_argument("--concurrency", type=int, default=4, help="clients; the first learns (default: 4)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a phase after its event (default: 5)")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of load before (default: 5)")
    parser.add_argument("--rounds", type=int, default=1, help="times that all phases are gone through (default: 1)")
    parser.add_argument("--small", type=int, default=200_000, help="tokens of A (default: 200000)")
    parser.add_argument("--large", type=int, default=2_000_000, help="tokens of B (default: 2000000)")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a Redis, a server and a process that changes the store, and measure."""
    for name, least in {"limit": 1, "max_tokens": 1, "rounds": 1, "small": 1, "large": 1, "concurrency": 2}.items():
        if (value := getattr(settings, name)) < least:
            settings.fail(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")
    questions = read_bodies(settings.prompts, CHAT)[: settings.limit]
    model = model_path(settings.model)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spectra-resilience-")))
        print("Building snapshots of the standard library ...", file=sys.stderr, flush=True)
        snapshots = build_snapshots(model, folder, settings.small, settings.large)
        redis = RedisProcess()
        stack.callback(redis.kill)
        redis.start()
        where = ("--retrieval", redis.url, "--retrieval-cache", str(folder / "cache"))
        flags = ("--method", settings.method, "--live", TENANT, "--trust-clients", "true", *where)
        server = stack.enter_context(ServerProcess(settings.model, flags))
        gc.collect()
        gc.freeze()  # what the tokenizer brought: collecting it would delay the clients
        spawn = multiprocessing.get_context("spawn")
        worker = stack.enter_context(ProcessPoolExecutor(1, spawn, initializer=prepare_worker))
        worker.submit(re.compile, "").result()  # so that the process is there, with its imports
        return asyncio.run(_measure(settings, server, questions, redis, snapshots, worker))


async def _measure(
    settings: argparse.Namespace,
    server: ServerProcess,
    questions: Sequence[Body],
    redis: RedisProcess,
    snapshots: Snapshots,
    worker: ProcessPoolExecutor,
) -> BenchmarkReport:
    bodies = [{**chat(server.model, "", settings.max_tokens, temperature=0), **question} for question in questions]
    turns = itertools.cycle(range(len(bodies)))

    def choose(client: int) -> tuple[int, Body]:
        question = next(turns)
        tenant = {"speculative": {"namespace": TENANT}} if client == LEARNER else {}
        return question, {**bodies[question], **tenant}

    streams = ClientStreams(server.url, settings.concurrency, choose)
    plain = [{**body, "speculative": {"enabled": False}} for body in bodies]
    await streams.learn_reference(plain, settings.concurrency)
    lateness: list[tuple[float, float]] = []
    timer = asyncio.create_task(_note_lateness(lateness))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        driver = RetrievalDriver(server.url, session, worker)
        async with streams.running():
            await asyncio.sleep(settings.warm_up)
            phases = await _go_through(driver, changes_of_a_round(redis, snapshots), settings)
        live = {name: value for name, value in (await driver.metrics()).items() if ":live_" in name}
    timer.cancel()
    with suppress(asyncio.CancelledError):
        await timer
    return _report(settings, phases, streams, lateness, snapshots, live)


async def _go_through(
    driver: RetrievalDriver, changes: Sequence[Change], settings: argparse.Namespace
) -> list[ChangePhase]:
    phases = []
    every = [(number + 1, change) for number in range(settings.rounds) for change in changes]
    with tqdm(every, unit="phase") as bar:
        for number, change in bar:
            bar.set_postfix_str(change.name)
            phases.append(await driver.make(change, number, settings.seconds))
    return phases


async def _note_lateness(lateness: list[tuple[float, float]]) -> None:
    """Note (moment, seconds) by which each tick of a timer is late."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(TIMER_S)
        now = time.monotonic()
        lateness.append((now, now - before - TIMER_S))


def _report(
    settings: argparse.Namespace,
    phases: Sequence[ChangePhase],
    streams: ClientStreams,
    lateness: list[tuple[float, float]],
    snapshots: Snapshots,
    live: dict[str, float],
) -> BenchmarkReport:
    gaps = pauses(record.chunks for record in streams.records)
    net = net_of(gaps, lateness, TIMER_S)
    rows = [row_of(phase, streams, gaps, net, lateness) for phase in phases]
    document: dict[str, Any] = {
        "requests": len(streams.records),
        "failures": len(streams.failures),
        "first_failures": streams.failures[:3],
        "different_texts": sum(map(streams.is_different, streams.records)),
        "wrong": [f"{row['phase']}: {what}" for row in rows for what in row["wrong"]],
        "by_kind": summary(rows),
        "live": live,
        "snapshots": {n: {"version": snapshots.versions[n], "tokens": snapshots.tokens[n]} for n in snapshots.versions},
        "concurrency": settings.concurrency,
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "phases": rows,
    }
    shown = tables(rows, {version: name for name, version in snapshots.versions.items()})
    print(shown)
    rounds = [[phase for phase in phases if phase.round == n + 1] for n in range(settings.rounds)]
    failed = bool(document["failures"] or document["different_texts"] or document["wrong"])
    return BenchmarkReport(
        document, shown, failed, lambda out: plots.retrieval(rounds, NOTHING, gaps, lateness, out / "timeline.png")
    )
