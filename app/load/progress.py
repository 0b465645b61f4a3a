"""The progress bar of a run: requests done, chunks per second, failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from app.load.records import RequestRecord
from app.reporting.report import bar

PERIOD_S = 0.5
FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}{postfix}]"


@asynccontextmanager
async def progress_bar(
    what: str, requests: int | None, duration: float | None, records: Sequence[RequestRecord]
) -> AsyncIterator[None]:
    """Show ``records`` while the block runs, on a bar over requests, or over seconds if ``requests`` is None."""
    total, unit = (requests, "req") if requests is not None else (round(duration or 0), "s")
    began = time.monotonic()
    seen = (0, began)  # chunks at a time
    with bar(what, total, unit, bar_format=FORMAT, dynamic_ncols=True) as shown:

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
                await asyncio.sleep(PERIOD_S)
                show()

        task = asyncio.create_task(refresh())
        try:
            yield
        finally:
            task.cancel()
            show()
