"""Goes through steps and checks what the server makes of each; not which steps, nor what clients see."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import aiohttp

from benchmarks.retrieval_chaos.moves import Done
from benchmarks.retrieval_chaos.phases import Phase, figures, health
from benchmarks.retrieval_chaos.steps import Step
from benchmarks.server_process import ServerProcess

LOOK_S = 0.1  # between two looks at /health
NOTICE_S = 15.0  # longest wait for a version or a problem to show


class Driver:
    """Goes through the steps and sees what the server makes of them."""

    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession, worker: ProcessPoolExecutor) -> None:
        self._server = server
        self._session = session
        self._worker = worker
        self._version = ""
        self._refused = 0.0

    async def go(self, step: Step, number: int, seconds: float) -> Phase:
        """Do ``step``, wait until it shows, and let ``seconds`` pass since it was done."""
        phase = Phase(step.name, number, time.monotonic())
        phase.moved = phase.began
        if step.act is not None or step.work:
            done = await self._do(step)
            phase.moved, phase.note = done.at, done.note
        wanted = step.version or self._version
        state = await self._until(phase, step, wanted)
        await asyncio.sleep(max(0.0, phase.moved + seconds - time.monotonic()))
        await self._look_back(phase, step, wanted, state)
        phase.ended = time.monotonic()
        return phase

    async def _do(self, step: Step) -> Done:
        if step.act is not None:
            return await asyncio.to_thread(step.act)
        return await asyncio.get_running_loop().run_in_executor(self._worker, *step.work)

    async def _until(self, phase: Phase, step: Step, wanted: str) -> dict[str, Any]:
        state: dict[str, Any] = {}
        while time.monotonic() < phase.moved + NOTICE_S:
            state = await health(self._session, self._server)
            if state["retrieval_version"] == wanted and _is_expected(state["retrieval_problem"], step.problem):
                phase.seen_after = max(0.0, time.monotonic() - phase.moved)
                break
            await asyncio.sleep(LOOK_S)
        return state

    async def _look_back(self, phase: Phase, step: Step, wanted: str, state: dict[str, Any]) -> None:
        after = await health(self._session, self._server)
        told = await figures(self._session, self._server)
        phase.version, phase.problem = after["retrieval_version"], state["retrieval_problem"]
        phase.staleness = told.get("spectra:retrieval_staleness_seconds", float("nan"))
        refused = told.get("spectra:retrieval_refused_total", 0.0)
        if phase.seen_after is None:
            phase.wrong.append(f"within {NOTICE_S:.0f} s not seen: version {wanted}, problem {step.problem!r}")
        if phase.version != wanted:
            phase.wrong.append(f"version {phase.version!r} instead of {wanted!r}")
        if refused - self._refused != step.refused:
            phase.wrong.append(f"{refused - self._refused:.0f} snapshots refused instead of {step.refused}")
        if after["status"] != "ok":
            phase.wrong.append(f"health is {after['status']}: {after['reason']}")
        self._version, self._refused = phase.version, refused


def _is_expected(problem: str, word: str) -> bool:
    return word in problem if word else not problem
