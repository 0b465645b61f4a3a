"""A phase, and what the server says of itself at /health and /metrics.

Knows what can be seen, not what must be seen: that is in the steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.retrieval_chaos.moves import NAMESPACE
from benchmarks.server_process import ServerProcess

_SERIES = re.compile(r"^(spectra:(?:retrieval|live)_\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass
class Phase:
    """A step that was done, and what was seen of it."""

    name: str
    round: int
    began: float  # monotonic seconds
    ended: float = 0.0
    moved: float = 0.0
    seen_after: float | None = None  # seconds from the move until /health showed it
    note: str = ""
    version: str = ""
    problem: str = ""
    staleness: float = 0.0
    wrong: list[str] = field(default_factory=list)


async def figures(session: aiohttp.ClientSession, server: ServerProcess) -> dict[str, float]:
    """Figures of retrieval at /metrics; of several namespaces, the shared one's."""
    async with session.get(f"{server.url}/metrics") as response:
        text = await response.text()
    return {
        name: float(value)
        for name, labels, value in _SERIES.findall(text)
        if "namespace=" not in labels or f'namespace="{NAMESPACE}"' in labels
    }


async def health(session: aiohttp.ClientSession, server: ServerProcess) -> dict[str, Any]:
    """What /health says."""
    async with session.get(f"{server.url}/health") as response:
        found: dict[str, Any] = await response.json()
    return found
