"""Makes one change after the other and checks what the server shows of each."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import aiohttp

from benchmarks.resilience.observation import ask_health
from benchmarks.resilience.phases import Phase
from benchmarks.resilience.retrieval.changes import NAMESPACE, Change, Done

PERIOD_S = 0.1  # between two looks at /health
NOTICE_S = 15.0  # longest wait for a version or a problem to show
SERIES = re.compile(r"^(spectra:(?:retrieval|live)_\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass
class ChangePhase(Phase):
    """A change of the store and what the server showed of it; ``acted`` is when it took effect."""

    round: int = 1
    seen_after: float | None = None  # seconds from the change until /health showed it
    note: str = ""
    version: str = ""
    problem: str = ""
    staleness: float = 0.0


class RetrievalDriver:
    """Makes changes and waits until the server shows them.

    Args:
        url: of the server.
        session: for /health and /metrics.
        worker: process that publishes, so that the clients' process does not stand still.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, worker: ProcessPoolExecutor) -> None:
        self._url = url
        self._session = session
        self._worker = worker
        self._version = ""
        self._refused = 0.0

    async def make(self, change: Change, number: int, seconds: float) -> ChangePhase:
        """Make ``change`` in round ``number``, wait until it shows and ``seconds`` have passed since."""
        now = time.monotonic()
        phase = ChangePhase(change.name, now, acted=now, round=number)
        if change.act is not None or change.work:
            done = await self._do(change)
            phase.acted, phase.note = done.at, done.note
        wanted = change.version or self._version
        await self._until_shown(phase, change.problem, wanted)
        await asyncio.sleep(max(0.0, phase.acted + seconds - time.monotonic()))
        await self._check(phase, change, wanted)
        phase.ended = time.monotonic()
        return phase

    async def _do(self, change: Change) -> Done:
        if change.act is None:
            return await asyncio.get_running_loop().run_in_executor(self._worker, *change.work)
        await asyncio.to_thread(change.act)
        return Done("", time.monotonic())

    async def _until_shown(self, phase: ChangePhase, problem: str, wanted: str) -> None:
        while phase.seen_after is None and time.monotonic() < phase.acted + NOTICE_S:
            health = await ask_health(self._session, self._url)
            phase.problem = health.get("retrieval_problem", "")
            is_expected = problem in phase.problem if problem else not phase.problem
            if health.get("retrieval_version") == wanted and is_expected:
                phase.seen_after = max(0.0, time.monotonic() - phase.acted)
            else:
                await asyncio.sleep(PERIOD_S)

    async def _check(self, phase: ChangePhase, change: Change, wanted: str) -> None:
        health, metrics = await ask_health(self._session, self._url), await self.metrics()
        phase.version = health.get("retrieval_version", "")
        phase.staleness = metrics.get("spectra:retrieval_staleness_seconds", float("nan"))
        refused = metrics.get("spectra:retrieval_refused_total", 0.0)
        if phase.seen_after is None:
            phase.wrong.append(f"within {NOTICE_S:.0f} s not seen: version {wanted}, problem {change.problem!r}")
        if phase.version != wanted:
            phase.wrong.append(f"version {phase.version!r} instead of {wanted!r}")
        if refused - self._refused != change.refused:
            phase.wrong.append(f"{refused - self._refused:.0f} snapshots refused instead of {change.refused}")
        if health.get("status") != "ok":
            phase.wrong.append(f"health is {health.get('status')}: {health.get('reason')}")
        self._version, self._refused = phase.version, refused

    async def metrics(self) -> dict[str, float]:
        """Figures of retrieval at /metrics; where there are several namespaces, those of the shared one."""
        async with self._session.get(f"{self._url}/metrics") as response:
            text = await response.text()
        series: list[tuple[str, str, str]] = SERIES.findall(text)
        shared = f'namespace="{NAMESPACE}"'
        return {name: float(value) for name, labels, value in series if "namespace=" not in labels or shared in labels}
