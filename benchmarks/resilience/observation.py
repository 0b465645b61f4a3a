"""Processes and memory of a server, and its answers to /health and /ready, observed from outside."""

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

from benchmarks.support.server_process import ServerProcess

MIB = 1 << 20
PARTS = {  # part -> mark in the programs of its processes
    "stages": "ray::StageActor",
    "target": "ray::ServeReplica:spectra:Target",
    "router": "ray::ServeReplica:spectra:Router",
    "ingress": "ray::ServeReplica:spectra:Ingress",
    "answer keeper": "ray::ServeReplica:spectra:AnswerKeeper",
    "speculators": "ray::SpeculatorActor",
    "Serve's controller": "ray::ServeController",
    "Serve's proxy": "ray::HAProxyManager",
    "Ray's GCS": "gcs_server",
    "raylet": "raylet",
    "HAProxy": "haproxy",
    "Ray's agents": "dashboard",
}
FREED = ("sessions", "running", "waiting", "speculator_states")  # fields of /health that are 0 without requests
POLL_S = 0.5
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=6.0)


@dataclass(frozen=True)
class Sample:
    """The state of a server at one moment."""

    at: float  # monotonic seconds
    is_ready: bool  # /ready answered 200
    kv_use: float | None  # share of KV blocks in use; None: /health did not answer
    memory: dict[str, float]  # part -> MiB resident; empty: not measured


@contextlib.asynccontextmanager
async def sampling(server: ServerProcess, period_s: float, with_memory: bool = False) -> AsyncIterator[list[Sample]]:
    """Add a sample every ``period_s`` seconds within the block; measuring memory takes some milliseconds."""
    samples: list[Sample] = []

    async def observe() -> None:
        async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session:
            while True:
                _, health = await probe(session, f"{server.url}/health")
                status, _ = await probe(session, f"{server.url}/ready")
                kv_use = 1 - health["free_blocks"] / health["blocks"] if health.get("blocks") else None
                memory = measure_memory(server.pid) if with_memory else {}
                samples.append(Sample(time.monotonic(), status == HTTPStatus.OK, kv_use, memory))
                await asyncio.sleep(period_s)

    task = asyncio.create_task(observe())
    try:
        yield samples
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def probe(session: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, Any]]:
    """Return status and JSON body of an answer; (0, {}) without one."""
    try:
        async with session.get(url) as response:
            return response.status, await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return 0, {}


async def find_leaks(url: str, timeout_s: float, find_more: Callable[[], list[str]] = list) -> list[str]:
    """Return what a server without clients has not freed after ``timeout_s``, and what ``find_more`` returns then."""
    deadline = time.monotonic() + timeout_s
    async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session:
        while True:
            await asyncio.sleep(POLL_S)
            _, health = await probe(session, f"{url}/health")
            leaks = [f"{name} is {health.get(name)}" for name in FREED if health.get(name) != 0]
            if health.get("free_blocks") != health.get("blocks"):
                leaks.append(f"{health.get('free_blocks')} of {health.get('blocks')} blocks are free")
            leaks += find_more()
            if not leaks or time.monotonic() > deadline:
                return leaks


def list_processes(root: int) -> list[psutil.Process]:
    """Return the server with process id ``root`` and all its descendants, oldest first."""
    parent = psutil.Process(root)
    return sorted([parent, *parent.children(recursive=True)], key=lambda process: process.create_time())


def find_part(process: psutil.Process) -> str:
    """Return the part of a server that a process belongs to; ``other``: idle workers and the command itself."""
    title = ""  # of a process that has ended
    with contextlib.suppress(psutil.Error):
        title = " ".join(process.cmdline())
    program = title.partition(" ")[0]
    return next((part for part, mark in PARTS.items() if mark in program or f"ray/{mark}" in title), "other")


def find_processes(root: int, part: str) -> list[psutil.Process]:
    """Return the running processes of a part of the server, a key of ``PARTS``; oldest first."""
    return [process for process in list_processes(root) if find_part(process) == part]


def sum_by_part(root: int, measure: Callable[[psutil.Process], float]) -> dict[str, float]:
    """Return the sum of ``measure`` over the processes of each part of the server."""
    sums: dict[str, float] = defaultdict(float)
    for process in list_processes(root):
        part = find_part(process)
        with contextlib.suppress(psutil.Error):
            sums[part] += measure(process)
    return dict(sums)


def measure_memory(root: int) -> dict[str, float]:
    """Return the resident MiB of each part of the server."""
    return sum_by_part(root, lambda process: process.memory_info().rss / MIB)
