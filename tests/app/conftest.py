"""The HTTP application with a scripted backend: no model, but steps, seeds, stop ids, limits, logprobs, failures and
cancellation."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from transformers import PreTrainedTokenizerFast

from app.access.caller import AccessOptions
from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from deployments.submission.messages import Health, ModelCard
from engine.errors import OverloadedError, SpectraError, TargetLostError
from engine.events import LENGTH, STOP, RequestStats, SourceCounts, StepEvent, TokenLogprob, histogram
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.support.tiny_models import tiny_tokenizer
from tests.support.waiting import LIMIT_S, wait_until

ANSWER = "The fox 🦊 drafts tokens: 日本語 and the river keeps running over the quiet town. STOP here, not later."
MODEL = "tiny"
METHODS = ("autoregressive", "pld", "lost")  # the last is that of a lost target
STEPS = (1, 3, 1, 4, 2)  # tokens per step, repeated; the first is the prefill's


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer(400)


class ScriptedBackend:
    """Answers with ``answer``, rotated by seed and choice, then EOS. Implements `app.api.service.Backend`."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.answer = ANSWER
        self.delay = 0.0  # seconds per step
        self.holds_after: int | None = None  # steps after which requests wait until this is None again
        self.fails_after: int | None = None  # steps until the failure
        self.failure: SpectraError = TargetLostError("the target is gone")
        self.is_healthy = True
        self.is_full = False
        self.running: set[str] = set()
        self.cancelled: set[str] = set()
        self.seen: list[Request] = []
        limits = {
            "max_model_len": 256,
            "vocab_size": len(tokenizer),
            "eos_ids": (2,),
            "max_nodes": 4,
            "limit_nodes": 64,
        }
        self.model_card = ModelCard(
            name=MODEL, created=7, fingerprint="fp", aliases=("org/alias",), method="pld", methods=METHODS, **limits
        )

    @property
    def counted(self) -> CollectorRegistry:
        return CollectorRegistry()  # one for each edge

    async def submit(self, request: Request) -> AsyncIterator[StepEvent]:
        self.seen.append(request)
        if self.is_full:
            raise OverloadedError("the queue is full", 1.5)
        return self._steps(request)

    def ids_for(self, params: SamplingParams) -> list[int]:
        ids = list(self.tokenizer.encode(self.answer, add_special_tokens=False))
        shift = (params.seed + params.choice) % len(ids) if params.temperature else 0
        return [*ids[shift:], *ids[:shift], 2]

    async def _steps(self, request: Request) -> AsyncIterator[StepEvent]:
        self.running.add(request.id)
        finished = False
        try:
            if request.method == "lost":
                raise TargetLostError("the target is gone")
            async for event in self._events(request.prompt, request.params):
                finished = event.finish_reason is not None
                yield event
        finally:
            self.running.discard(request.id)
            if not finished:
                self.cancelled.add(request.id)

    async def _events(self, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[StepEvent]:
        ids = self.ids_for(params)[: params.max_tokens]
        ends = [i for i, token in enumerate(ids) if token in params.stop_ids]
        ids += [5] * (params.max_tokens - len(ids))  # where EOS is ignored
        n = ends[0] + 1 if ends else len(ids)
        sizes: list[int] = []
        while sum(sizes) < n:
            if self.fails_after is not None and len(sizes) >= self.fails_after:
                raise self.failure
            await asyncio.sleep(self.delay)
            while self.holds_after is not None and len(sizes) >= self.holds_after:
                await asyncio.sleep(0.001)
            done = sum(sizes)
            batch = ids[done : min(n, done + STEPS[len(sizes) % len(STEPS)])]
            sizes.append(len(batch))
            is_last, hits = sum(sizes) == n, len(batch) - 1
            yield StepEvent(
                token_ids=batch,
                finish_reason=None if not is_last else STOP if ends else LENGTH,
                stop_reason=batch[-1] if is_last and ends else None,
                logprobs=self._logprobs(batch, params.logprobs),
                prompt_logprobs=self._logprobs(prompt_ids[1:], params.prompt_logprobs) if not done else None,
                drafts={"pld": SourceCounts(4, hits, 4, hits, hits)},
                stats=self._stats(len(prompt_ids), sizes[1:]) if is_last else None,
            )

    def _logprobs(self, ids: list[int], k: int | None) -> list[TokenLogprob] | None:
        if k is None:
            return None
        return [TokenLogprob(t, -0.5, tuple((t + j, -0.5 - j) for j in range(k))) for t in ids]

    def _stats(self, n_prompt: int, steps: list[int]) -> RequestStats:
        drafted, accepted = 4 * len(steps), sum(steps) - len(steps)
        return RequestStats(
            prompt_tokens=n_prompt,
            target_forwards=len(steps),
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            step_tokens=steps,
            accepted_steps=histogram(n - 1 for n in steps),
            max_nodes_used=4,
            by_source={"pld": SourceCounts(drafted, accepted, drafted, accepted, accepted)},
            cached_tokens=n_prompt - 1,
        )

    async def check_ready(self) -> None:
        if not self.is_healthy:
            raise TargetLostError("no target")

    async def health(self) -> Health:
        return Health(ok=self.is_healthy, reason="" if self.is_healthy else "no target", detail={"replicas": 1})

    async def metrics_text(self) -> str:
        return "vllm:spec_decode_num_drafts_total 3\n"


@pytest.fixture
def backend(tokenizer: PreTrainedTokenizerFast) -> ScriptedBackend:
    return ScriptedBackend(tokenizer)


@pytest.fixture
def app(backend: ScriptedBackend, tokenizer: PreTrainedTokenizerFast) -> object:
    return create_app(
        Api(backend, tokenizer, ServiceSettings(version="9.9", default_max_tokens=200)),
        AccessOptions(trust_clients=True),
    )


def client_of(app: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge")


def app_with_context(backend: ScriptedBackend, n_tokens: int) -> object:
    """An application whose model has ``n_tokens`` of context."""
    backend.model_card = msgspec.structs.replace(backend.model_card, max_model_len=n_tokens)
    return create_app(Api(backend, backend.tokenizer, ServiceSettings()))


@pytest.fixture
async def client(app: object) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


@pytest.fixture
def server(app: object) -> Iterator[str]:
    with listening(app) as url:
        yield url


@contextmanager
def listening(app: object) -> Iterator[str]:
    """Serves the application with uvicorn on a free port; yields its base address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started, "the server did not start")
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        server.should_exit = True
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream."""
    return [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, after a check of its status and of OpenAI's form."""
    assert response.status_code == status, response.text[:1000]
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error
