"""Runs a load against a server: the warm-up, then the loop; returns the records."""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import msgspec
import uvloop

from app.load.client import LoadClient
from app.load.loops import Ask, arrivals, closed_loop, open_loop
from app.load.progress import LoadProgressBar
from app.load.records import RequestRecord
from app.load.settings import LoadProfile, RequestPlan
from app.load.stream import Endpoint, open_session
from engine.errors import ConfigError

MODELS_TIMEOUT_S = 30.0
Loop = Callable[[Ask], Awaitable[None]]


@dataclass(frozen=True)
class Ran:
    """The records of a run, in the order of requests, and the CPU time of the client."""

    records: list[RequestRecord]
    warmup: list[RequestRecord]
    cpu_seconds: float
    seconds: float

    @property
    def cpu_share(self) -> float:
        """CPU seconds per second; near 1, the client limits the load."""
        return self.cpu_seconds / self.seconds if self.seconds else 0.0


def run(load: LoadProfile, plan: RequestPlan) -> Ran:
    """Load the server until the run ends."""
    return uvloop.run(_run(load, plan))


def model_at(base: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None) -> str:
    """The first model a server lists.

    Raises:
        ConfigError: the server does not answer, or lists no model.
    """
    return uvloop.run(_first_model(base, headers, tls))


async def _run(load: LoadProfile, plan: RequestPlan) -> Ran:
    async with open_session(load.tls) as session:
        warmup = await _warm_up(session, load, plan)
        cpu, began = time.process_time(), time.monotonic()
        records = await _phase(session, load, plan, load.label, load.requests, load.duration, _loop(load))
        return Ran(records, warmup, time.process_time() - cpu, time.monotonic() - began)


def _loop(load: LoadProfile) -> Loop:
    if load.rate is None:
        return partial(closed_loop, concurrency=load.concurrency or 1, requests=load.requests, duration=load.duration)
    times = arrivals(load.rate, load.arrivals, load.seed, load.requests, load.duration)
    return partial(open_loop, offsets=times)


async def _warm_up(session: aiohttp.ClientSession, load: LoadProfile, plan: RequestPlan) -> list[RequestRecord]:
    """Send requests -1, -2, .. in a closed loop."""
    if not load.warmup:
        return []
    n = load.concurrency or min(8, load.warmup)

    async def loop(ask: Ask) -> None:
        await closed_loop(lambda index, intended: ask(-1 - index, intended), n, load.warmup, None)

    return await _phase(session, load, plan, "warm-up", load.warmup, None, loop)


async def _phase(
    session: aiohttp.ClientSession,
    load: LoadProfile,
    plan: RequestPlan,
    what: str,
    requests: int | None,
    duration: float | None,
    loop: Loop,
) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    async with LoadProgressBar(what, requests, duration) as progress:
        client = LoadClient(session, Endpoint(load.url, load.headers, load.timeout), load.retries, progress)

        async def ask(index: int, intended: float) -> None:
            record = plan.record(index, intended)
            records.append(record)
            progress.begins()
            await client.ask(plan.body(record), record)
            progress.ends(record)

        await loop(ask)
    return sorted(records, key=lambda record: record.index)


async def _first_model(base: str, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> str:
    try:
        async with (
            open_session(tls) as session,
            session.get(f"{base}/models", headers=headers, timeout=aiohttp.ClientTimeout(MODELS_TIMEOUT_S)) as answer,
        ):
            if answer.status != 200:
                raise ConfigError(f"--url: GET {base}/models answers with status {answer.status}; give --model")
            found: Iterable[Any] = msgspec.json.decode(await answer.read())["data"]
            return str(next(iter(found))["id"])
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise ConfigError(f"--url: no server answers at {base}: {error or type(error).__name__}") from error
    except (msgspec.DecodeError, KeyError, TypeError, StopIteration) as error:
        raise ConfigError(f"--url: GET {base}/models lists no model; give --model") from error
