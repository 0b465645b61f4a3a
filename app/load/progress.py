"""The progress bar of a run: requests done, chunks per second, failures."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from app.load.client import RequestObserver
from app.load.records import Break, RequestRecord
from app.reporting.report import bar

PERIOD_S = 0.5
FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}{postfix}]"


class LoadProgressBar(RequestObserver):
    """A bar over requests, or over seconds if the number of requests is unknown; use it as a context.

    Args:
        what: in front of the bar.
        requests: to be done; None: the bar shows seconds.
        duration: seconds in which requests begin.
    """

    def __init__(self, what: str, requests: int | None, duration: float | None) -> None:
        self._what = what
        self._requests = requests
        self._duration = duration
        self._chunks = self._done = self._running = self._errors = self._retried = 0
        self._seen = (0, time.monotonic())

    async def __aenter__(self) -> Self:
        total, unit = (self._requests, "req") if self._requests is not None else (round(self._duration or 0), "s")
        self._bar = bar(self._what, total, unit, bar_format=FORMAT, dynamic_ncols=True)
        self._began = time.monotonic()
        self._task = asyncio.create_task(self._refresh())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._show()
        self._bar.close()

    def chunk(self, record: RequestRecord, text: str, now: float) -> None:
        """Count a chunk."""
        self._chunks += 1

    def broke(self, record: RequestRecord, found: Break) -> None:
        """Count a failed attempt."""
        self._retried += 1

    def begins(self) -> None:
        """Count a request in flight."""
        self._running += 1

    def ends(self, record: RequestRecord) -> None:
        """Count a request as done."""
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
        self._bar.n = self._done if self._requests is not None else min(self._bar.total, round(now - self._began))
        words = f"{rate:.0f} chunks/s, {self._running} running, {self._errors} failed"
        self._bar.set_postfix_str(words + (f", {self._retried} attempts broken" if self._retried else ""))
