"""The progress bar of a run: requests done, chunks per second, failures."""

from __future__ import annotations

import asyncio
import time
from typing import Self

from app.load.client import RequestObserver
from app.load.records import Break, RequestRecord
from app.reporting.report import bar

PERIOD_S = 0.5
FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}{postfix}]"


class LoadProgressBar(RequestObserver):
    """A bar over requests, or over the ``duration`` if the number of requests is None; use it in ``async with``."""

    def __init__(self, what: str, requests: int | None, duration: float | None) -> None:
        self._counts_requests = requests is not None
        total, unit = (requests, "req") if requests is not None else (round(duration or 0), "s")
        self._bar = bar(what, total, unit, bar_format=FORMAT, dynamic_ncols=True)
        self._chunks = self._done = self._running = self._errors = self._broken = 0
        self._began = time.monotonic()
        self._seen = (0, self._began)  # chunks at a time

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._refresh())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._show()
        self._bar.close()

    def chunk(self, record: RequestRecord, text: str, now: float) -> None:
        self._chunks += 1

    def broke(self, record: RequestRecord, found: Break) -> None:
        self._broken += 1

    def begins(self) -> None:
        self._running += 1

    def ends(self, record: RequestRecord) -> None:
        self._running -= 1
        self._done += 1
        self._errors += not record.ok

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        before, then = self._seen
        rate = (self._chunks - before) / max(now - then, 1e-9)
        self._seen = (self._chunks, now)
        self._bar.n = self._done if self._counts_requests else min(self._bar.total, round(now - self._began))
        broken = f", {self._broken} attempts broken" if self._broken else ""
        self._bar.set_postfix_str(f"{rate:.0f} chunks/s, {self._running} running, {self._errors} failed{broken}")
