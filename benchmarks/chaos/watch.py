"""What a server says of itself and takes of its machine, looked at again and again; judges nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil

from benchmarks.chaos.blows import processes, title

MIB = 1 << 20
PARTS = {
    "ray::StageActor": "stages",
    "ray::ServeReplica:spectra:Target": "target",
    "ray::ServeReplica:spectra:Router": "router",
    "ray::ServeReplica:spectra:Ingress": "ingress",
    "ray::SpeculatorActor": "speculators",
    "ray::ServeController": "Serve's controller",
    "ray::HAProxyManager": "Serve's proxy",
}
RAY = {
    "gcs_server": "Ray's GCS",
    "raylet": "raylet",
    "haproxy": "HAProxy",
    "dashboard": "Ray's agents",
}  # in their paths


@dataclass(frozen=True)
class Look:
    """One look."""

    at: float  # monotonic seconds
    health: dict[str, Any]  # empty: no answer
    memory: dict[str, float]  # part -> MiB resident


@dataclass
class Watch:
    """Looks at a server every ``period`` seconds until told to stop.

    Args:
        url: of the server.
        root: process id of ``spectra serve``.
        period: seconds.
        with_memory: whether memory is looked at, which takes some milliseconds.
    """

    url: str
    root: int
    period: float = 0.1
    with_memory: bool = False
    looks: list[Look] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=6.0)) as session:
            while True:
                health = await ask_health(session, self.url)
                memory = resident(self.root) if self.with_memory else {}
                self.looks.append(Look(time.monotonic(), health, memory))
                await asyncio.sleep(self.period)


async def ask_health(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What /health says; empty when nobody answers."""
    try:
        async with session.get(f"{url}/health") as response:
            found: dict[str, Any] = await response.json(content_type=None)
            return found
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return {}


def resident(root: int) -> dict[str, float]:
    """MiB resident of every part of the server; ``other`` is idle workers and the command."""
    found: dict[str, float] = defaultdict(float)
    for process in processes(root):
        part = _part(title(process))
        with contextlib.suppress(psutil.Error):
            found[part] += process.memory_info().rss / MIB
    return dict(found)


def _part(name: str) -> str:
    for mark, part in PARTS.items():
        if name.startswith(mark):
            return part
    first = name.partition(" ")[0]
    return next((part for mark, part in RAY.items() if mark in first or f"ray/{mark}" in name), "other")
