"""What is seen of a server from outside: its processes and memory, what /health and /ready say. Judges nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
import psutil

MIB = 1 << 20
PARTS = {  # part -> beginning of its process titles
    "stages": "ray::StageActor",
    "target": "ray::ServeReplica:spectra:Target",
    "router": "ray::ServeReplica:spectra:Router",
    "ingress": "ray::ServeReplica:spectra:Ingress",
    "speculators": "ray::SpeculatorActor",
    "Serve's controller": "ray::ServeController",
    "Serve's proxy": "ray::HAProxyManager",
}
FREED = ("sessions", "running", "waiting", "speculator_states")  # of /health: 0 when no request runs
LOOK_S = 0.5
PROGRAMS = {"Ray's GCS": "gcs_server", "raylet": "raylet", "HAProxy": "haproxy", "Ray's agents": "dashboard"}


@dataclass(frozen=True)
class Sample:
    """One look at a server."""

    at: float  # monotonic seconds
    health: dict[str, Any]  # empty: no answer
    is_ready: bool  # /ready said that a request sent now would be served
    memory: dict[str, float]  # part -> MiB resident; empty: not measured

    @property
    def kv_use(self) -> float | None:
        """Share of KV blocks in use; None: /health did not say."""
        blocks = self.health.get("blocks")
        return 1 - self.health["free_blocks"] / blocks if blocks else None


@contextlib.asynccontextmanager
async def sampled(url: str, root: int, period: float, with_memory: bool = False) -> AsyncIterator[list[Sample]]:
    """Look at a server every ``period`` seconds within the block; the list that is given grows meanwhile.

    Args:
        url: of the server.
        root: process id of ``spectra serve``.
        period: seconds between two samples.
        with_memory: whether to measure memory, which takes some milliseconds.
    """
    samples: list[Sample] = []

    async def look() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=6.0)) as session:
            while True:
                health, is_ready = await ask_health(session, url), await ask_ready(session, url)
                memory = resident(root) if with_memory else {}
                samples.append(Sample(time.monotonic(), health, is_ready, memory))
                await asyncio.sleep(period)

    task = asyncio.create_task(look())
    try:
        yield samples
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def ask_health(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What /health says; empty without an answer."""
    try:
        async with session.get(f"{url}/health") as response:
            found: dict[str, Any] = await response.json(content_type=None)
            return found
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return {}


async def ask_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether /ready says that a request sent now would be served."""
    try:
        async with session.get(f"{url}/ready") as response:
            return response.status == HTTPStatus.OK
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def left_over(url: str, within: float, more: Callable[[], list[str]] = list) -> list[str]:
    """What should have gone and has not, in words.

    Args:
        url: of a server whose clients have ended.
        within: seconds that it has to free everything.
        more: names what else is left over; asked at every look.
    """
    deadline = time.monotonic() + within
    async with aiohttp.ClientSession() as session:
        while True:
            await asyncio.sleep(LOOK_S)
            health = await ask_health(session, url)
            leaks = [f"{name} is {health.get(name)}" for name in FREED if health.get(name) != 0]
            if health.get("free_blocks") != health.get("blocks"):
                leaks.append(f"{health.get('free_blocks')} of {health.get('blocks')} blocks are free")
            leaks += more()
            if not leaks or time.monotonic() > deadline:
                return leaks


def processes(root: int) -> list[psutil.Process]:
    """The server and all its descendants, oldest first."""
    parent = psutil.Process(root)
    found = [parent, *parent.children(recursive=True)]
    return sorted(found, key=lambda process: process.create_time())


def title(process: psutil.Process) -> str:
    """The title of a process; empty when it has gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def alive(root: int, part: str) -> list[psutil.Process]:
    """Running processes of a part of the server, a key of ``PARTS``; oldest first."""
    return [process for process in processes(root) if title(process).startswith(PARTS[part])]


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and bool(title(process))
    except psutil.Error:
        return False


def resident(root: int) -> dict[str, float]:
    """MiB resident of every part of the server; ``other`` is idle workers and the command itself."""
    found: dict[str, float] = defaultdict(float)
    for process in processes(root):
        part = part_of(title(process))
        with contextlib.suppress(psutil.Error):
            found[part] += process.memory_info().rss / MIB
    return dict(found)


def part_of(name: str) -> str:
    """The part of a server that a process with this title belongs to."""
    if part := next((part for part, mark in PARTS.items() if name.startswith(mark)), None):
        return part
    program = name.partition(" ")[0]
    return next((part for part, mark in PROGRAMS.items() if mark in program or f"ray/{mark}" in name), "other")
