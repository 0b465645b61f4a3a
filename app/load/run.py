"""Runs a load against a server: a warm-up, then a closed or an open loop; returns the records."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import aiohttp
import msgspec
import uvloop

from app.load.client import LoadClient
from app.load.costs import PhaseSeconds, read_phases, subtract_phases
from app.load.records import RequestRecord
from app.load.settings import POISSON, LoadProfile, RequestPlan
from app.load.stream import open_session
from app.reporting.report import bar
from engine.errors import ConfigError

QUERY_TIMEOUT_S = 30.0  # of all that is no load
BAR_PERIOD_S = 0.5
BAR_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}{postfix}]"
T = TypeVar("T")
Ask = Callable[[int, float], Coroutine[Any, Any, None]]  # index of a request, and its intended time in seconds


@dataclass(frozen=True)
class LoadRun:
    """The records of a run, in the order of requests, and the CPU time of the client."""

    records: list[RequestRecord]
    warmup: list[RequestRecord]
    cpu_seconds: float
    seconds: float
    phases: PhaseSeconds = None  # of the server

    @property
    def cpu_share(self) -> float:
        """CPU seconds per second; near 1, the client limits the load."""
        return self.cpu_seconds / self.seconds if self.seconds else 0.0


def run(load: LoadProfile, plan: RequestPlan) -> LoadRun:
    return uvloop.run(_run(load, plan))


def model_at(base: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None) -> str:
    """The first model a server lists; raises ConfigError if it does not answer, or lists none."""

    async def ask() -> str:
        async with open_session(tls) as session:
            return await request_json(
                session,
                "GET",
                f"{base}/models",
                headers,
                lambda found: str(found["data"][0]["id"]),
                "a model; give --model",
            )

    return uvloop.run(ask())


async def request_json(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str],
    pick: Callable[[Any], T],
    needed: str,
    body: Mapping[str, Any] | None = None,
) -> T:
    """Return what ``pick`` finds in the JSON of an answer; raise ConfigError, which names ``needed``, without it."""
    try:
        timeout = aiohttp.ClientTimeout(QUERY_TIMEOUT_S)
        async with session.request(method, url, json=body, headers=headers, timeout=timeout) as answer:
            if answer.status != 200:
                raise ConfigError(f"--url: {method} {url} answers with status {answer.status}, not with {needed}")
            return pick(msgspec.json.decode(await answer.read()))
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise ConfigError(f"--url: no server answers at {url}: {error or type(error).__name__}") from error
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"--url: {method} {url} answers without {needed}") from error


async def _run(load: LoadProfile, plan: RequestPlan) -> LoadRun:
    async with open_session(load.tls) as session:
        client = LoadClient(session, load.endpoint, load.retries)
        warmup: list[RequestRecord] = []
        if load.warmup:
            clients = load.concurrency or min(8, load.warmup)
            loop = partial(closed_loop, concurrency=clients, requests=load.warmup, duration=None)
            async with progress_bar("warm-up", load.warmup, None, warmup):
                await loop(_sender(client, plan, warmup, is_warmup=True))
        if load.trace is not None:
            loop = partial(open_loop, offsets=load.trace.offsets)
        elif load.rate is not None:
            times = arrivals(load.rate, load.arrivals, load.seed, load.requests, load.duration)
            loop = partial(open_loop, offsets=times)
        else:
            loop = partial(
                closed_loop, concurrency=load.concurrency or 1, requests=load.requests, duration=load.duration
            )
        before = await _fetch_phases(session, load)
        cpu, began = time.process_time(), time.monotonic()
        records: list[RequestRecord] = []
        async with progress_bar(load.label, load.requests, load.duration, records):
            await loop(_sender(client, plan, records))
        records.sort(key=lambda record: record.index)
        cpu, seconds = time.process_time() - cpu, time.monotonic() - began
        phases = subtract_phases(await _fetch_phases(session, load), before)
        return LoadRun(records, warmup, cpu, seconds, phases)


async def _fetch_phases(session: aiohttp.ClientSession, load: LoadProfile) -> PhaseSeconds:
    """Return the server's seconds since its start."""
    if not load.metrics:
        return None
    try:
        timeout = aiohttp.ClientTimeout(QUERY_TIMEOUT_S)
        async with session.get(load.metrics, headers=load.endpoint.headers, timeout=timeout) as answer:
            return read_phases(await answer.text())
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return None


def _sender(client: LoadClient, plan: RequestPlan, records: list[RequestRecord], *, is_warmup: bool = False) -> Ask:
    """A function that sends a request and adds its record; those of a warm-up have the indices -1, -2, .."""

    async def ask(index: int, intended: float) -> None:
        record = plan.record(-1 - index if is_warmup else index, intended)
        records.append(record)
        await client.ask(plan.body(record), record)

    return ask


@asynccontextmanager
async def progress_bar(
    what: str, requests: int | None, duration: float | None, records: Sequence[RequestRecord]
) -> AsyncIterator[None]:
    """Show ``records`` while the block runs, on a bar over requests, or over seconds if ``requests`` is None."""
    total, unit = (requests, "req") if requests is not None else (round(duration or 0), "s")
    began = time.monotonic()
    seen = (0, began)  # chunks at a time
    with bar(what, total, unit, bar_format=BAR_FORMAT, dynamic_ncols=True) as shown:

        def show() -> None:
            nonlocal seen
            n_chunks, now = sum(len(record.chunks) for record in records), time.monotonic()
            rate = (n_chunks - seen[0]) / max(now - seen[1], 1e-9)
            seen = (n_chunks, now)
            ended = [record for record in records if record.outcome]
            failed, n_broken = sum(not record.ok for record in ended), sum(len(record.breaks) for record in records)
            shown.n = len(ended) if requests is not None else min(total, round(now - began))
            broken = f", {n_broken} attempts broken" if n_broken else ""
            shown.set_postfix_str(f"{rate:.0f} chunks/s, {len(records) - len(ended)} running, {failed} failed{broken}")

        async def refresh() -> None:
            while True:
                await asyncio.sleep(BAR_PERIOD_S)
                show()

        task = asyncio.create_task(refresh())
        try:
            yield
        finally:
            task.cancel()
            show()


async def closed_loop(ask: Ask, concurrency: int, requests: int | None, duration: float | None) -> None:
    """Run ``concurrency`` clients; each sends its next request when its last one is done.

    Args:
        ask: sends one request and returns when it is done; must not raise.
        requests: to send in all; None: no limit.
        duration: seconds in which requests begin; None: no limit.
    """
    end = math.inf if duration is None else time.monotonic() + duration
    indices = itertools.islice(itertools.count(), requests)

    async def client() -> None:
        while (now := time.monotonic()) < end and (index := next(indices, None)) is not None:
            await ask(index, now)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())


async def open_loop(ask: Ask, offsets: Iterable[float]) -> None:
    """Send requests at given moments, however many are unanswered; returns when all are done.

    Args:
        ask: sends one request; latency counts from the moment that it gets.
        offsets: arrivals, in seconds from now, ascending.
    """
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for index, offset in enumerate(offsets):
            await asyncio.sleep(began + offset - time.monotonic())
            group.create_task(ask(index, began + offset))


def arrivals(
    rate: float, kind: str, seed: int, requests: int | None = None, duration: float | None = None
) -> Iterator[float]:
    """When the requests of an open loop arrive: ascending seconds from its start.

    ``POISSON`` arrivals have exponential gaps, independent of each other; ``FIXED`` ones have equal gaps. ``requests``
    and ``duration`` limit them.
    """
    noise = random.Random(seed)
    times: Iterator[float] = (i / rate for i in itertools.count())
    if kind == POISSON:
        times = itertools.accumulate(noise.expovariate(rate) for _ in itertools.count())
    if duration is not None:
        times = itertools.takewhile(lambda at: at < duration, times)
    return itertools.islice(times, requests)
