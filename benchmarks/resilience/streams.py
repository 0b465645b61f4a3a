"""Clients that repeat seeded questions, the answers they received, and the pauses in those."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import aiohttp

from app.inputs.prompts import BUILTIN
from app.load.client import LoadClient
from app.load.records import RequestRecord
from app.load.stream import Endpoint, open_session
from benchmarks.resilience.kept_clients import KeptAnswerClient
from benchmarks.support.server_process import ServerProcess

METHODS = (None, "autoregressive", "pld", "suffix", "spectra-core", "suffix+token-recycling")  # None: the server's
FAILURE_PAUSE_S = 0.2


def build_question(model: str, client: int, max_tokens: int) -> dict[str, Any]:
    """Return the body that a client repeats: half are greedy, half are sampled with a seed, with six methods."""
    messages = [{"role": "user", "content": BUILTIN[client % len(BUILTIN)]}]
    body = {"model": model, "messages": messages, "max_tokens": max_tokens, "ignore_eos": True}
    body |= {"temperature": 0.8 if client % 2 else 0.0, "seed": 100 + client}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    method = METHODS[client % len(METHODS)]
    return body if method is None else body | {"speculative": {"method": method}}


def find_pauses(streams: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    """Return (end, seconds) of each pause between neighbouring moments of a stream, sorted by end."""
    return sorted((after, after - before) for moments in streams for before, after in pairwise(moments))


class ClientStreams:
    """``n`` clients that ask without pause, each its own question. In their records, ``index`` is the client."""

    def __init__(
        self,
        server: ServerProcess,
        n: int,
        max_tokens: int,
        retries: int,
        headers: Mapping[str, str],
        is_kept: bool = False,
    ) -> None:
        self.n = n
        self.records: list[RequestRecord] = []  # of all requests, including running ones
        self._reference: list[str] = []  # client -> its undisturbed answer
        self._bodies = [build_question(server.model, client, max_tokens) for client in range(n)]
        self._endpoint = Endpoint(f"{server.url}/v1/chat/completions", headers)
        self._retries = retries
        self._is_kept = is_kept  # ask for answers that outlive their connection
        self._session: aiohttp.ClientSession | None = None
        self._latest: dict[int, RequestRecord] = {}  # client -> its last request
        self._stopping = False

    async def learn_reference(self) -> None:
        """Ask all questions once, at the same time, and keep the answers; a failure ends the benchmark."""
        records = [RequestRecord(client, client, None, time.monotonic()) for client in range(self.n)]
        async with open_session() as session:
            client = LoadClient(session, self._endpoint)
            await asyncio.gather(*map(client.ask, self._bodies, records))
        if failed := [record.breaks[-1].message for record in records if not record.ok]:
            raise SystemExit(f"{len(failed)} undisturbed requests failed: {failed[:3]}")
        self._reference = [record.text for record in records]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let all clients ask within the block, then wait until their last requests end."""
        async with open_session() as session, asyncio.TaskGroup() as tasks:
            self._session = session
            client: LoadClient | KeptAnswerClient = LoadClient(session, self._endpoint, self._retries)
            if self._is_kept:
                client = KeptAnswerClient(session, self._endpoint)
            for number in range(self.n):
                tasks.create_task(self._repeat_question(client, number))
            yield
            self._stopping = True

    async def _repeat_question(self, client: LoadClient | KeptAnswerClient, number: int) -> None:
        while not self._stopping:
            self._latest[number] = record = RequestRecord(number, number, None, time.monotonic())
            self.records.append(record)
            await client.ask(self._bodies[number], record)
            if not record.ok:
                await asyncio.sleep(FAILURE_PAUSE_S)

    def drop_connections(self) -> None:
        """Lose all connections, as clients whose network fails."""
        assert self._session is not None
        assert self._session.connector is not None
        for connection in [*self._session.connector._acquired]:
            if connection.transport is not None:
                connection.transport.abort()

    async def wait_for_text(self, timeout_s: float) -> bool:
        """Wait until every client has received new text; returns False after ``timeout_s`` seconds."""
        began = time.monotonic()
        flowing: set[int] = set()
        while len(flowing) < self.n and time.monotonic() < began + timeout_s:
            await asyncio.sleep(0.02)
            flowing |= {client for client, one in self._latest.items() if one.chunks and one.chunks[-1] > began}
        return len(flowing) == self.n

    @property
    def received(self) -> list[list[float]]:
        """When each client received text, in monotonic seconds."""
        moments: list[list[float]] = [[] for _ in range(self.n)]
        for record in self.records:
            moments[record.index] += record.chunks
        return moments

    @property
    def failures(self) -> list[str]:
        """Why requests failed for good."""
        return [f"client {r.index}: {r.outcome}: {r.breaks[-1].message}" for r in self.records if not r.ok]

    @property
    def changed_clients(self) -> list[int]:
        """Clients that received another text than undisturbed, also if it changed only in a retry."""
        changed = (r for r in self.records if r.ok and (r.diverged or r.text != self._reference[r.index]))
        return sorted({record.index for record in changed})
