"""Clients that ask a server one question after the other, and what each of them received."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from app.load.client import LoadClient
from app.load.records import RequestRecord
from app.load.stream import Endpoint, open_session

Body: TypeAlias = Mapping[str, Any]
FAILURE_PAUSE_S = 0.2


def chat(model: str, question: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """The body of a streamed chat request."""
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": max_tokens, "stream": True}
    return body | {"stream_options": {"include_usage": True}} | more


class ClientStreams:
    """Clients that ask without pause. In their records ``index`` is the client and ``prompt`` the question.

    Args:
        url: of the server.
        n: number of clients.
        choose: (question, body) that a client asks next.
        retries: of a request that fails.
        headers: of every request.
    """

    def __init__(
        self,
        url: str,
        n: int,
        choose: Callable[[int], tuple[int, Body]],
        retries: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.n = n
        self.reference: list[str] = []  # the right answer to every question
        self.records: list[RequestRecord] = []  # all requests, those that still run included
        self._endpoint = Endpoint(f"{url}/v1/chat/completions", headers or {})
        self._choose = choose
        self._retries = retries
        self._latest: dict[int, RequestRecord] = {}  # client -> its last request
        self._stopping = False

    async def learn_reference(self, bodies: Sequence[Body], at_once: int) -> float:
        """Ask every question once, ``at_once`` at a time, and keep the answers; returns the seconds it took.

        Raises:
            SystemExit: a request failed.
        """
        began, slots = time.monotonic(), asyncio.Semaphore(at_once)
        async with open_session() as session:
            client = LoadClient(session, self._endpoint)

            async def ask(question: int) -> RequestRecord:
                async with slots:
                    return await client.ask(bodies[question], RequestRecord(question, question, None, began))

            found = await asyncio.gather(*(ask(question) for question in range(len(bodies))))
        if failed := [record.breaks[-1].message for record in found if not record.ok]:
            raise SystemExit(f"{len(failed)} undisturbed requests failed: {failed[:3]}")
        self.reference = [record.text for record in found]
        return time.monotonic() - began

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All clients ask within the block; at its end, requests that have begun are awaited."""
        async with open_session() as session:
            client = LoadClient(session, self._endpoint, self._retries)
            tasks = [asyncio.create_task(self._ask_on(client, number)) for number in range(self.n)]
            try:
                yield
                self._stopping = True
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_on(self, client: LoadClient, number: int) -> None:
        while not self._stopping:
            question, body = self._choose(number)
            record = RequestRecord(number, question, None, time.monotonic())
            self.records.append(record)
            self._latest[number] = record
            await client.ask(body, record)
            if not record.ok:
                await asyncio.sleep(FAILURE_PAUSE_S)

    async def all_flow(self, within: float) -> bool:
        """Whether every client receives text, counted from now, before ``within`` seconds have passed."""
        began = time.monotonic()
        flowing: set[int] = set()
        while len(flowing) < self.n and time.monotonic() < began + within:
            await asyncio.sleep(0.02)
            flowing |= {client for client, one in self._latest.items() if one.chunks and one.chunks[-1] > began}
        return len(flowing) == self.n

    @property
    def received(self) -> dict[int, list[float]]:
        """Client -> when it received text, in monotonic seconds."""
        moments: dict[int, list[float]] = {client: [] for client in range(self.n)}
        for record in self.records:
            moments[record.index] += record.chunks
        return moments

    def summary(self) -> dict[str, Any]:
        """How many requests there were, failed, began anew, and whose texts differ, as documents have it."""
        return {
            "streams": self.n,
            "requests": len(self.records),
            "failed": len(self.failures),
            "first_failures": self.failures[:3],
            "different_texts": sorted({record.prompt for record in self.records if self.is_different(record)}),
            "retried": sum(record.retries for record in self.records),
        }

    @property
    def failures(self) -> list[str]:
        """Why requests failed for good."""
        return [f"client {r.index}: {r.outcome}: {r.breaks[-1].message}" for r in self.records if not r.ok]

    def is_different(self, record: RequestRecord) -> bool:
        """Whether the answer, or its beginning after a retry, is not the right one."""
        return record.ok and (record.diverged or record.text != self.reference[record.prompt])
