"""Seeded streams that are asked for again and again, and whether each answer is the undisturbed one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.inputs.prompts import BUILTIN
from app.load.client import Client, Endpoint, Watcher, open_session
from app.load.records import Break, Record

METHODS = (None, "autoregressive", "pld", "suffix", "spectra-core", "suffix+token-recycling")  # None: the server's
RETRIES = 50  # of one request; an ingress takes seconds to come back


@dataclass
class Streams(Watcher):
    """``n`` clients, each with one question of its own: prompt, seed, temperature, method.

    Args:
        url: of the server.
        model: its name there.
        n: clients.
        max_tokens: of an answer.
    """

    url: str
    model: str
    n: int
    max_tokens: int
    reference: list[str] = field(default_factory=list)  # undisturbed texts
    records: list[Record] = field(default_factory=list)  # all that were asked for in the storm
    breaks: list[tuple[int, Break]] = field(default_factory=list)  # (client, break)
    _stop: bool = False
    _fresh: set[int] = field(default_factory=set)  # clients that have had text since ``forget``

    def chunk(self, record: Record, text: str, now: float) -> None:
        """New text came."""
        self._fresh.add(record.prompt)

    def broke(self, record: Record, found: Break) -> None:
        """An attempt failed."""
        self.breaks.append((record.prompt, found))

    def _body(self, client: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": BUILTIN[client % len(BUILTIN)]}],
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "temperature": 0.8 if client % 2 else 0.0,
            "seed": 100 + client,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        method = METHODS[client % len(METHODS)]
        return body if method is None else body | {"speculative": {"method": method}}

    async def undisturbed(self) -> float:
        """Ask every question once, all at a time; keeps the texts, returns the seconds it took.

        Raises:
            SystemExit: one failed.
        """
        began = time.monotonic()
        async with open_session() as session:
            client = Client(session, self._endpoint())
            asked = [client.ask(self._body(i), Record(i, i, None, began)) for i in range(self.n)]
            found = await asyncio.gather(*asked)
        failed = [record.breaks for record in found if not record.ok]
        if failed:
            raise SystemExit(f"undisturbed requests failed: {failed[:3]}")
        self.reference = [record.text for record in found]
        return time.monotonic() - began

    async def run(self) -> None:
        """All clients, until ``stop``; an answer that runs then is awaited."""
        async with open_session() as session:
            client = Client(session, self._endpoint(), RETRIES, self)
            await asyncio.gather(*(self._loop(client, i) for i in range(self.n)))

    def stop(self) -> None:
        """Ask for nothing new."""
        self._stop = True

    async def _loop(self, client: Client, number: int) -> None:
        while not self._stop:
            record = Record(len(self.records), number, None, time.monotonic())
            self.records.append(record)
            await client.ask(self._body(number), record)

    def _endpoint(self) -> Endpoint:
        return Endpoint(f"{self.url}/v1/chat/completions")

    async def all_flow(self, within: float) -> bool:
        """Whether every client has had text, counted from now, before ``within`` seconds have passed."""
        self._fresh.clear()
        deadline = time.monotonic() + within
        while len(self._fresh) < self.n and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return len(self._fresh) == self.n

    @property
    def failures(self) -> list[str]:
        """What became of requests that failed for good."""
        return [f"client {r.prompt}: {r.outcome}: {r.breaks[-1].message}" for r in self.records if not r.ok]

    @property
    def different(self) -> list[int]:
        """Clients that got another text than the undisturbed one, or a retry that began otherwise."""
        return sorted({r.prompt for r in self.records if r.ok and (r.diverged or r.text != self.reference[r.prompt])})


def chunk_times(records: Sequence[Record]) -> dict[int, list[float]]:
    """Client -> when its text came, over all of its answers."""
    times: dict[int, list[float]] = {}
    for record in records:
        times.setdefault(record.prompt, []).extend(record.chunks)
    return times
