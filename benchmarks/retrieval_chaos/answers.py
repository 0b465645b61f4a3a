"""One streamed chat request, and when its events came; not who sends it, nor what happens meanwhile."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.server_process import ServerProcess


@dataclass
class Answer:
    """One streamed request, as its client saw it."""

    prompt: int
    namespace: str
    began: float  # monotonic seconds
    events: list[float] = field(default_factory=list)  # when each event with text came
    ended: float = 0.0
    text: str = ""
    tokens: int = 0
    steps: int = 0
    failure: str = ""


async def ask(session: aiohttp.ClientSession, server: ServerProcess, answer: Answer, body: dict[str, Any]) -> None:
    """Send a chat request, stream the answer and write down when its events come; failures go to ``answer.failure``."""
    body = {"model": server.model, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}} | body
    try:
        async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {(await response.text())[:200]}")
            finished = False
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _take(answer, json.loads(line[6:]), time.monotonic())
                finished = finished or line.startswith(b"data: [DONE]")
            if not finished:
                raise RuntimeError("the stream broke off")
    except (aiohttp.ClientError, TimeoutError, RuntimeError, OSError, ValueError) as error:
        answer.failure = f"{type(error).__name__}: {error}"
    answer.ended = time.monotonic()


def _take(answer: Answer, event: dict[str, Any], now: float) -> None:
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    for choice in event.get("choices", ()):
        answer.text += choice["delta"].get("content") or ""
        answer.events.append(now)
    if event.get("usage"):
        answer.tokens = event["usage"]["completion_tokens"]
    if figures := (event.get("metrics") or {}).get("speculative_decoding"):
        answer.steps = figures["num_spec_steps"]
