"""The load: clients that ask without end, and their timer; not what happens to the store meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from app.inputs.prompts import BUILTIN
from benchmarks.retrieval_chaos.answers import Answer, ask
from benchmarks.server_process import ServerProcess

TENANT = "learner"
BEAT_S = 0.01


def prompts_of(path: Path | None, limit: int) -> list[str]:
    """First turns of the file, or the built-in prompts."""
    if path is None:
        return list(BUILTIN[:limit])
    return [json.loads(line)["turns"][0] for line in path.read_text().splitlines() if line.strip()][:limit]


class Load:
    """Clients that send one request after the other until told to stop, and a timer that says how late it was."""

    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession, prompts: Sequence[str], n: int) -> None:
        self._server = server
        self._session = session
        self._prompts = prompts
        self._n = n
        self._stopping = False
        self._next = 0
        self.answers: list[Answer] = []
        self.beats: list[tuple[float, float]] = []  # when, and seconds late

    async def reference(self, concurrency: int) -> list[str]:
        """Texts of all prompts without speculation."""
        gate = asyncio.Semaphore(concurrency)

        async def one(prompt: int) -> str:
            async with gate:
                answer = await self._ask(prompt, {"enabled": False}, "")
            if answer.failure:
                raise SystemExit(f"without speculation already: {answer.failure}")
            return answer.text

        return await asyncio.gather(*(one(prompt) for prompt in range(len(self._prompts))))

    async def client(self, namespace: str) -> None:
        """One client."""
        while not self._stopping:
            prompt = self._next % len(self._prompts)
            self._next += 1
            answer = await self._ask(prompt, {"namespace": namespace} if namespace else {}, namespace)
            self.answers.append(answer)
            if answer.failure:
                await asyncio.sleep(0.2)

    async def _ask(self, prompt: int, speculative: dict[str, Any], namespace: str) -> Answer:
        answer = Answer(prompt, namespace, time.monotonic())
        messages = [{"role": "user", "content": self._prompts[prompt]}]
        body = {"messages": messages, "max_tokens": self._n, "speculative": speculative}
        await ask(self._session, self._server, answer, body)
        return answer

    async def beat(self) -> None:
        """The timer."""
        while not self._stopping:
            before = time.monotonic()
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            self.beats.append((now, now - before - BEAT_S))

    def stop(self) -> None:
        """Let requests end that have begun."""
        self._stopping = True
